-- The entrypoint of the image runs this once, in $POSTGRES_DB. It can be run again, and in other databases.
-- The tables of the queues belong to a role without login, so that fetchq acts as no superuser.
create extension if not exists fetchq;
do $$ begin
    if to_regrole('fetchq_data_owner') is null then
        create role fetchq_data_owner nologin;
    end if;
end $$;
select fetchq.data_owner_set('fetchq_data_owner');
