select fetchq.mnt();
