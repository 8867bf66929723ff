"""Requirement files of well-known projects, their pins and extras.

None names torchvision (the registry's is built for CUDA, the tests' torch is not), or what has no wheel."""

FILES = {
    "torchmetrics": "numpy>1.20.0\npackaging>17.1\ntorch>=2.0.0\nlightning-utilities>=0.8.0\ntorchmetrics\n",
    "deepspeed": "einops\nhjson\nmsgpack\nninja\nnumpy\npackaging>=20\npsutil\npy-cpuinfo\npydantic>=2\ntorch\ntqdm\n",
    "x-transformers": "x-transformers\nvector-quantize-pytorch==1.28.*\neinx>=0.3.0\n",
    "accelerate": "numpy>=1.17\npackaging>=20.0\npsutil\npyyaml\ntorch>=2.0.0\nsafetensors>=0.4.3\naccelerate[rich]\n",
    "nanogpt": "torch\nnumpy\ntransformers\ntiktoken\ntqdm\n",
    "diffusers": "diffusers[torch]\ntransformers>=4.25.1\nftfy\ntensorboard\nJinja2\npeft>=0.7.0\n",
    "lightning": "torch>=2.1.0\nfsspec[http]>=2022.5.0\npackaging>=20.0\ntqdm>=4.57.0\nlightning\n",
    "peft": "numpy>=1.17\npsutil\ntorch>=1.13\ntransformers\naccelerate>=0.21\nhuggingface_hub>=0.25\npeft==0.21.*\n",
    "sentence-transformers": "sentence-transformers[train]\n",
    "stable-baselines3": "stable-baselines3\ngymnasium>=0.29.1,<1.4\n",
    "pytorch-geometric": "torch-geometric\naiohttp\nscikit-learn\n",
    "kornia": "kornia_rs>=0.1.9\npackaging\ntorch>=2.0.0 ; python_version >= '3.9'\nkornia\n",
}
