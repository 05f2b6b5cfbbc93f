"""Command lines without their secrets."""

import time

import pytest

from truestep.base.redaction import redacted


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("--wandb-key s3 --lr 0.1", "--wandb-key *** --lr 0.1"),
        ("--api-key=s3 data", "--api-key=*** data"),
        ("--password s3", "--password ***"),
        ("--token=s=3", "--token=***"),
        ("--hfToken s3", "--hfToken ***"),
        ("-api_key s3", "-api_key ***"),
        ("--aws_access_key_id s3", "--aws_access_key_id ***"),
        ("wandb.api_key=s3 model=small", "wandb.api_key=*** model=small"),
        ("WANDB_API_KEY=s3", "WANDB_API_KEY=***"),
        ('{"a":1,"api_key":"s3"}', '{"a":1,"api_key":***'),
        ("postgres://me:s3@host/db", "postgres://***@host/db"),
        ("https://host/x?token=s3&a=1", "https://host/x?token=***"),
        ("--header Authorization:Bearer-s3", "--header Authorization:***"),
    ],
)
def test_what_follows_a_secret_name_is_hidden(given: str, shown: str) -> None:
    assert redacted(given.split(" ")) == shown.split(" ")


@pytest.mark.parametrize(
    "given",
    [
        "--lr=0.1 --pin-memory true --max-tokens 512 --tokenizer bert",
        "--num-key-value-heads 8 --token-dropout 0.1 --keys 3 --monkey george",
        "--use-token --epochs 3",
        "https://host:8000/x s3://bucket/data C:/data",
    ],
)
def test_what_is_no_secret_stays(given: str) -> None:
    assert redacted(given.split(" ")) == given.split(" ")


@pytest.mark.parametrize("word", ["a", "a ", "://a", "key ", "A", "-.", 'a" '])
def test_a_long_word_takes_time_in_proportion(word: str) -> None:
    begun_s = time.process_time()
    redacted([word * 200_000])
    assert time.process_time() - begun_s < 5  # a tenth of a second; squared it would be minutes
