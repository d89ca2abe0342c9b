-- What the leader has told by --on-event, and up to where it has read: one row, of whoever leads.
create table notices (
  id         smallint primary key default 1 check (id = 1),
  detail     jsonb not null default '{}',
  updated_at timestamptz not null default now()
);
