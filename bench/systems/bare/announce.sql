create or replace function bare.announce() returns trigger language plpgsql as $$ begin notify bare_@queue@; return null; end $$;
create trigger announce after insert on bare.@queue@ for each statement execute function bare.announce();
