drop table notices;
