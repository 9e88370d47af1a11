-- Documents that wait are deleted as rows, so that what vacuum has not removed yet stays.
delete from fetchq_data.jobs__docs where status between 0 and 2;
