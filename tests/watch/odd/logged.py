"""Logging by configuration: files, formats with lines and functions, levels of the stack."""
import logging, logging.config
from training import digest, small, train

logging.config.dictConfig({
    "version": 1, "formatters": {"plain": {"format": "%(levelname)s %(module)s %(funcName)s %(lineno)d %(threadName)s %(message)s"}},
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "train.log", "formatter": "plain"}, "screen": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"level": "DEBUG", "handlers": ["file", "screen"]}, "disable_existing_loggers": False,
})
log = logging.getLogger("own")

def hook(module, args, out):
    for level in range(1, 6):
        log.info("a pass", stacklevel=level)

model = small()
model.register_forward_hook(hook)
train(model)
logging.captureWarnings(True)
log.info("%s %s", digest(model), sorted(logging.Logger.manager.loggerDict)[:0])
print(logging.root.handlers, logging.getLevelName(logging.root.level), logging.raiseExceptions)
