listen bare_@queue@;
