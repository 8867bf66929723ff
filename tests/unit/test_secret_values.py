"""What of a command line may be kept: values that are plainly no secret."""

from __future__ import annotations

import pytest

from fleet.inventory.secret import masked, masked_argv, secret_in, unless_secret


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
    assert unless_secret(name, value) == value


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
    assert unless_secret(name, value) is None
    assert masked(["fleet", "launch", "--env", f"{name}={value}", f"--env-expand={name}={value}", "x.py"]) == [
        *("fleet", "launch", "--env", f"{name}=***", f"--env-expand={name}=***", "x.py")
    ]


@pytest.mark.parametrize(
    "words, told",
    [
        ("hf_train_everything.py --lr 1e-4 --max-tokens 512 --key-dim=64 --tokenizer gpt2", None),
        ("t.py --token=abc --api-key abc PASSWORD=1 --lr 1", "t.py --token=*** --api-key *** PASSWORD=*** --lr 1"),
        ("t.py --hub hf_AbCdEfGh12345678 --db=http://me:pw@host/", "t.py --hub *** --db=***"),
        ("--env=TOKEN=abc --env=LR=1 -e TOKEN=abc", "--env=TOKEN=*** --env=LR=1 -e TOKEN=***"),
        ("t.py --use-auth --lr 1 --password 5", "t.py --use-auth --lr 1 --password ***"),
    ],
)
def test_a_scripts_arguments_are_told_without_secrets(words: str, told: str | None) -> None:
    assert masked_argv(words.split()) == (told or words).split()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("PASSWORD='a$bcd'", "PASSWORD=***"),
        ("PASSWORD=$'abc'", "PASSWORD=***"),
        ("cd x;PASSWORD=abc", "PASSWORD=***"),
        ("export WANDB_API_KEY=abc123", "WANDB_API_KEY=***"),
        ('export MY_SECRET_KEY="abc def"', "MY_SECRET_KEY=***"),
        ("export A=1 HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=***"),
        ("export ETH_KEY=0x0123456789012345678901234567890123456789", "ETH_KEY=***"),
        ("login --token abcdef", "--token ***"),
        ("export HF_TOKEN=${HF_TOKEN:-hf_abcdefghijklmnopqr}", "HF_TOKEN=***"),
        ("t.py --sort-key loss --monitor-key val/loss", None),
        (f"wandb login {'0123456789' * 4}", "login ***"),
        (f"wandb login --host=https://x '{'0123456789' * 4}'", "login ***"),
        ("curl -H 'Authorization: Bearer abc' https://x", "Authorization: ***"),
        ('curl -H "PRIVATE-TOKEN: abc" https://x', "PRIVATE-TOKEN: ***"),
        ("curl https://me:pw@host/x", "***"),
        ("curl https://x/?a=1&api_key=abc", "api_key=***"),
        ("bash -c 'export HF_TOKEN=abc; x'", "HF_TOKEN=***"),
    ],
)
def test_a_secret_in_a_line_for_a_shell(line: str, shown: str) -> None:
    """Only its name is shown, nothing else of the line."""
    assert secret_in(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring",
        "export UCX_IB_PKEY=0x8001",
        "SSH_AUTH_SOCK=/tmp/x; HF_TOKEN_PATH=~/x; PWD=/x",
        "export WANDB_API_KEY_FILE=x HF_TOKEN=; A_KEY=''",
        "source env.sh --token-file /x",
        "export WANDB_API_KEY=$(cat ~/.key); A_TOKEN=`cat x y`",
        'export HF_TOKEN="$HF"',
        'curl -H "Authorization: Bearer $TOKEN" -H "Authorization: $(cat x)" https://x',
        'wandb login "$(cat x)"; wandb login $KEY',
        f"git checkout {'0123456789' * 4}",
        "bash --login setup.sh; docker login -u me --password-stdin registry.example",
        "--key-dim 64 --max-tokens=512 it's a\\ b",
    ],
)
def test_a_line_for_a_shell_without_a_secret(line: str) -> None:
    assert secret_in(line) is None
