"""Limits that the script sets itself: open files, the size of files, processes, memory."""
import os, resource
from training import digest, small, train

model = small()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
train(model)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 64))
train(model)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
train(model, num=70)
print(resource.getrlimit(resource.RLIMIT_FSIZE), resource.getrlimit(resource.RLIMIT_NOFILE), digest(model))
