listen fetchq__@queue@__pnd;
