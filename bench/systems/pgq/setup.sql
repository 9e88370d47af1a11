select pgq.create_queue('@queue@');
select pgq.register_consumer('@queue@', 'bench');
