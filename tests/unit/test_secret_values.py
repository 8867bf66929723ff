"""What of a command line may be kept: values that are plainly no secret."""

from __future__ import annotations

import pytest

from fleet.inventory.secret import kept, masked, masked_words


@pytest.mark.parametrize(
    "name, value",
    [
        *(("X", value) for value in ("8", "1e-4", "-0.5", "true", "fast", "my-project", "~/data/imagenet", "bf16", "")),
        ("NCCL_SOCKET_IFNAME", "=eth0,enp193s0f1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("TOKENIZERS_PARALLELISM", "false"),
        *((name, "some") for name in ("BYPASS", "PASSES", "TWO_PASSES", "AUTHOR", "CREDIT")),
        ("NCCL_TOPO", "ring:2,tree=3"),
        ("X", "--lr 1 --author me"),
    ],
)
def test_what_is_plainly_no_secret_is_kept(name: str, value: str) -> None:
    assert kept(name, value) == value


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, "8") for name in ("HF_TOKEN", "api_key", "MY_SECRET", "DB_PASSWORD", "Auth", "AWS_CREDENTIALS")),
        *((name, "hunter") for name in ("PASS", "db_pass", "SMTP_PASS2", "PGPASS", "MYSQL_PWD")),
        *((name, "hunter") for name in ("DB_PW", "CREDS", "MY_CRED", "LOGIN", "X_AUTHORIZATION")),
        *(("X", value) for value in ("--token=hunter", "--lr 1 --api-key hunter", '{"password": "hunter"}')),
        *(("HF_X", value) for value in ("Authorization: Basic hunter", "Bearer hunter", "user=me;pwd=hunter")),
        *(("X", value) for value in ("hunter3", "hf_AbCdEf", "a" * 21, "6fc3a1bde2", "two\nlines", "x" * 500, "ключ")),
        ("WANDB_BASE_URL", "https://me:pw@host/"),
        ("X", "postgres://me@host/db"),
    ],
)
def test_what_may_be_one_is_not(name: str, value: str) -> None:
    assert kept(name, value) is None
    assert masked(["fleet", "launch", "--env", f"{name}={value}", f"--env-expand={name}={value}", "x.py"]) == [
        *("fleet", "launch", "--env", f"{name}=***", f"--env-expand={name}=***", "x.py")
    ]


@pytest.mark.parametrize(
    "words, told",
    [
        ("hf_train_everything.py --lr 1e-4 --max-tokens 512 --key-dim=64 --tokenizer gpt2", None),
        ("t.py --token=abc --api-key abc PASSWORD=1 --lr 1", "t.py --token=*** --api-key *** PASSWORD=*** --lr 1"),
        ("t.py --hub hf_AbCdEfGh12345678 --db=http://me:pw@host/", "t.py --hub *** --db=***"),
        ("t.py --use-auth --lr 1 --password 5", "t.py --use-auth --lr 1 --password ***"),
    ],
)
def test_a_scripts_arguments_are_told_without_secrets(words: str, told: str | None) -> None:
    assert masked_words(words.split()) == (told or words).split()
