"""Folders, variables and files: moved, set and written while the script trains."""
import os, pathlib, shutil, tempfile
import torch
from training import digest, small, train

os.umask(0o077)
os.environ["OWN"], before = "1", dict(os.environ)
model = small()
os.makedirs("inner/deep")
os.chdir("inner")
train(model, num=4)
torch.save(model.state_dict(), "deep/weights.pt")
with tempfile.TemporaryDirectory(dir=".") as name:
    pathlib.Path(name, "note").write_text("x")
    train(model)
os.chdir("deep")
shutil.rmtree("../deep")
train(model)
os.chdir("../..")
os.environ.clear()
train(model)
os.environ.update(before)
pathlib.Path("end.txt").write_text(digest(model))
os.chmod("end.txt", 0o640)
os.symlink("end.txt", "link.txt")
print(sorted(os.listdir(".")), os.path.realpath("link.txt").rpartition("/")[2], dict(os.environ) == before)
