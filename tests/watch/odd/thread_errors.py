"""Errors in threads, with hooks of the script's own and without."""
import sys, threading
import torch
from training import small

def fail():
    small()(torch.ones(2, 5))

def hook(args):
    names = []
    trace = args.exc_traceback
    while trace:
        names.append((trace.tb_frame.f_code.co_filename.rpartition("/")[2], trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    print(args.exc_type.__name__, args.thread.name, names)

for kind in (threading.__excepthook__, hook):
    threading.excepthook = kind
    thread = threading.Thread(target=fail, name="failing")
    thread.start()
    thread.join()
