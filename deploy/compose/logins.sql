-- psql -f ../roles.sql -f logins.sql, with WORKER_PASSWORD and WEB_PASSWORD in the environment. Idempotent; sets the passwords anew.
\getenv worker_password WORKER_PASSWORD
\getenv web_password WEB_PASSWORD
select 'create role fleet_worker login' where not exists (select 1 from pg_roles where rolname = 'fleet_worker') \gexec
select 'create role fleet_web login' where not exists (select 1 from pg_roles where rolname = 'fleet_web') \gexec
alter role fleet_worker password :'worker_password';
alter role fleet_web password :'web_password';
grant flightdeck_worker to fleet_worker;
grant flightdeck_submit, flightdeck_operator to fleet_web;
