-- What the leader has told by --on-event, and up to where it has read: one row, of whoever leads.
create table notices (
  id         integer primary key default 1 check (id = 1),
  detail     text not null default '{}',
  updated_at text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
);
