"""Generators on vLLM: the interface of rollout.py, with vLLM's engine decoding.

Paper: Sec. 2 (fast inference kernels), Sec. 3.1, A.11 (weights in flight), Sec. 3.2 (FP32 head), A.10 (interruption).

Each completion is a request to vLLM, submitted when a slot is free; a step is one step of vLLM's engine. To interrupt a
completion, its request is aborted and submitted again with the phrase appended. The keys and values that vLLM keeps of
prompts (its prefix cache) are salted with the version that samples a completion's first token, so no completion starts
on keys and values of older weights. `named_weights` has the same Hugging Face names and tensors as TorchGenerator's.

Deviation: vLLM draws its own random numbers, one sequence for each generator. Its arithmetic depends a little on
  what else is in a batch, so the same completion can come out differently where two tokens nearly tie.
Deviation: vLLM computes keys and values again, under the present weights, where it has not kept them. It drops a block
  of its cache that is not full, and so computes up to a block of tokens (CPU_BLOCK on a CPU) again at an interruption.
  It also computes a completion again that it evicted because the cache was full.
Known limit: the transfer of new weights on a GPU (`_over_ipc`) has never been run.

Run by train.py --generator vllm. Test: pytest tests/test_vllm.py where vLLM is installed.
Page: docs/own.md
"""

import os
import signal
from collections.abc import Callable
from importlib.metadata import distributions
from itertools import accumulate, count
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import experts
from rollout import PREFILL_TOKENS, Generator

VLLM = "0.32."  # the version that this file is written for
CALL_TIMEOUT = 300.0  # seconds; loading new weights is the longest call
ALIGNED = 256  # bytes: where a tensor may begin in a storage
CPU_BLOCK = 32  # positions per block of vLLM's cache, a multiple of 32; its default of 128 shares and reuses less
CPU_CACHE = 1 << 30  # bytes of it at most, unless one completion needs more; VLLM_CPU_KVCACHE_SPACE (GiB) overrides it
GPU_SHARE = 0.9  # of the GPU memory free at the start, divided by the processes on that GPU: AdamW's state comes later
ENVIRONMENT = {  # for vLLM; a variable that is set already is kept
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its scheduler in this process: its step is ours, and one process less
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else all generators on a machine are bound to the same cores
    "VLLM_LOGGING_LEVEL": "ERROR",  # else a warning per update that a tied head has no weights of its own to load
    "VLLM_NO_USAGE_STATS": "1",
}


def require_vllm():
    """Raise ImportError unless the version of vLLM that this file is written for is installed; imports nothing."""
    installed = [f"{d.name} {d.version}" for d in distributions() if d.name in ("vllm", "vllm-cpu")]
    if not any(name.split()[1].startswith(VLLM) for name in installed):
        raise ImportError(
            f"expected vLLM {VLLM}x, got {', '.join(installed) or 'none'}: is the extra [vllm] missing, or "
            "was another version installed? docs/own.md says how to install it with and without a GPU"
        )


def check_dense(config):
    """Raise ValueError for a mixture of experts."""
    if experts.count(config)[0] > 1:
        raise ValueError(
            f"--generator vllm with experts ({config.model_type}): expected a dense model, for vLLM {VLLM}x takes new "
            "weights of experts wrongly and does not say so; take --generator torch"
        )


class VLLMWorker:
    """Methods that vLLM adds to its worker: they run in the child process, which holds the model.

    An exception in one of them ends the worker's engine: the caller gets a RuntimeError, or no answer.
    """

    # What the methods below use of vLLM's worker.
    model_runner: Any
    reload_weights: Callable
    start_weight_update: Callable
    update_weights: Callable
    finish_weight_update: Callable

    def prepare(self):
        """Called once; returns the dtype of the head's product."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process in time
        return self.model_runner.get_model().logits_processor.head_dtype

    def load_file(self, path):
        """Load new weights, on a CPU: {name: tensor} as saved in `path`."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        self.reload_weights(weights_iterator=torch.load(path, mmap=True).items())
        for module in self.model_runner.get_model().modules():
            if isinstance(module, VocabParallelEmbedding):
                # A tied head multiplies with a packed copy of the embedding, which a reload leaves unchanged.
                module.quant_method.process_weights_after_loading(module)

    def load_ipc(self, handles):
        """Load new weights from the parent's memory on the same GPU, by vLLM's `ipc` weight transfer."""
        self.start_weight_update()
        self.update_weights(handles)
        self.finish_weight_update()
        torch.accelerator.synchronize()  # then nothing reads the parent's memory any more, and it may be overwritten


class VLLMGenerator(Generator):
    """pi_gen on vLLM 0.32: its scheduler runs in this process, the model in a child process, the worker.

    folder     of a Hugging Face model: weights, config, generation config
    dtype      of the weights and the forward pass
    fp32_head  Sec. 3.2: the head's product in fp32; checked in the worker
    sharing    processes of the run on this GPU, each of which leaves room for the others
    awaits     the first weights come by `update_weights` too: vLLM reads none and has small random numbers until then,
               so that the check at the start sees what never comes
    settings   as for Generator

    On a GPU, this process and the worker both use the current CUDA device. GPU and CPU differ only in how weights are
    transferred and in settings for vLLM. Known limit: the transfer on a GPU (`_over_ipc`) is untested;
    tests/test_gpu.py has tests for it that need a GPU and vLLM.

    Raises ImportError without vLLM 0.32, RuntimeError if the worker dies, fails or has a head of another dtype than
    asked for, TimeoutError if it does not answer within CALL_TIMEOUT. After any of these the generator cannot be used.
    `close` ends the worker, as does the end of this process, whatever its cause.
    """

    def __init__(self, folder, tokenizer, *, dtype=torch.float32, fp32_head=True, sharing=1, awaits=False, **settings):
        require_vllm()
        self._sharing = sharing
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        check_dense(model.config)
        super().__init__(model, tokenizer, **settings)
        self._names = count()  # names of requests to vLLM
        self._running = {}  # ActiveSequences, by name of the request
        self._weights = {name: parameter.data for name, parameter in model.named_parameters()}
        os.environ.update(ENVIRONMENT | os.environ)
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform

        # The only place that tells a GPU from a CPU: what this vLLM was built for counts, even if torch finds a GPU.
        options = self._over_memory() if current_platform.is_cpu() else self._over_ipc()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(folder),
                load_format="dummy" if awaits else "auto",
                skip_tokenizer_init=True,
                dtype=str(dtype).removeprefix("torch."),
                hf_overrides={"head_dtype": "float32" if fp32_head else "model"},
                logprobs_mode="processed_logprobs",
                max_num_seqs=self.slots,
                max_model_len=self.positions,
                enable_prefix_caching=True,
                scheduling_policy="priority",  # evaluations first, then the oldest requests, interrupted ones too
                # Without seeds per request, with which vLLM draws row by row, in Python. Generators draw other numbers.
                seed=(1_000_003 * self.seed + int(os.environ.get("RANK", "0"))) % 2**31,
                async_scheduling=False,  # else a step is in flight while weights arrive
                # The model is not in this process: there vLLM would wait for all ranks of the default process group.
                distributed_executor_backend="mp",
                worker_extension_cls=f"{__name__}.VLLMWorker",
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **options,
            )
        )
        expected = torch.float32 if fp32_head else dtype
        [got] = self._call("prepare")
        if got != expected:
            self.close()
            raise RuntimeError(f"expected vLLM's head in {expected}, got {got}: does this vLLM ignore head_dtype?")
        # More would wait inside vLLM, and the last of them would be evicted first. In the mean a running completion
        # holds half of its positions.
        cache = self._engine.vllm_config.cache_config
        self.slots = max(1, min(self.slots, 2 * cache.num_gpu_blocks * cache.block_size // self.positions))

    def _call(self, method, *arguments):
        """Call a method of VLLMWorker; with a time limit, because a load that fails midway may never answer."""
        return self._engine.collective_rpc(method, CALL_TIMEOUT, arguments)

    # --- Weights

    def _over_memory(self):
        """On a CPU: updates are received into a file in memory, which the worker reads. Returns settings for vLLM."""
        # The file has no name in the file system: nothing is left behind, however the processes end.
        self._file = os.fdopen(os.memfd_create("weights"))
        path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        torch.save(self._weights, path)
        from mmap import MAP_SHARED  # not on every system; nor is os.memfd_create

        with torch.serialization.set_default_mmap_options(MAP_SHARED):  # what is written into a tensor is in the file
            self._weights = torch.load(path, mmap=True)
        self._publish = lambda: self._call("load_file", path)
        # Bytes of keys and values: of a position, and of the longest completion with the block that vLLM leaves empty.
        keys = [weight for name, weight in self._weights.items() if name.endswith("k_proj.weight")]
        position = 2 * sum(weight.shape[0] * weight.itemsize for weight in keys)
        longest = position * (self.positions + 2 * CPU_BLOCK)
        # With room for all slots no completion is ever evicted; without room for one, vLLM does not start.
        cache = max(longest, min(self.slots * longest, CPU_CACHE))
        # Prompts are never run in parts: vLLM cannot rewind a random generator on a CPU.
        return dict(
            enforce_eager=True,
            block_size=CPU_BLOCK,
            kv_cache_memory_bytes=cache,
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(PREFILL_TOKENS, self.positions + self.slots),
        )

    def _over_ipc(self):
        """On a GPU: updates are received into its memory, shared by vLLM's `ipc` transfer. Returns vLLM's settings."""
        from torch.multiprocessing.reductions import reduce_tensor

        gpu = torch.cuda.current_device()
        uuid = str(torch.cuda.get_device_properties(gpu).uuid)
        # All in one storage, exported once: the worker opens a handle's memory and event at each update and destroys
        # no event, of which CUDA has some 20,000.
        offsets = [0, *accumulate(-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in self._weights.values())]
        flat = torch.empty(offsets.pop(), dtype=torch.uint8, device="cuda")
        for (name, tensor), start in zip(self._weights.items(), offsets):
            place = flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            self._weights[name] = place.copy_(tensor)
        names, tensors = map(list, zip(*self._weights.items()))
        kind, _, _, _, storage, _, *handle = reduce_tensor(flat)[1]  # rebuild_cuda_tensor's arguments
        exported = dict(
            names=names,
            dtype_names=[str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            shapes=[list(tensor.shape) for tensor in tensors],
            ipc_handles=[
                {uuid: (kind, tensor.shape, tensor.stride(), tensor.storage_offset(), storage, tensor.dtype, *handle)}
                for tensor in tensors
            ],
        )

        def publish():
            torch.cuda.synchronize()  # wait until the received weights are in place
            self._call("load_ipc", exported)

        self._publish = publish
        free, total = torch.cuda.mem_get_info()
        return dict(
            device_ids=[gpu],
            weight_transfer_config={"backend": "ipc"},
            gpu_memory_utilization=GPU_SHARE / self._sharing * free / total,
            max_num_batched_tokens=max(PREFILL_TOKENS, self.slots),
        )

    def named_weights(self):
        """{name: tensor}, tied ones once: new weights are copied into these; update_weights passes them on."""
        return self._weights

    def update_weights(self, version):
        """Load the tensors of named_weights, which now hold `version`, into the worker; later tokens carry it."""
        self._publish()
        self.version = version
        for name, sequence in [*self._running.items()]:
            if not any(sampled for _, sampled, *_ in sequence.tokens):
                self._restart(name)  # vLLM may have run the prompt, or a part of it, under the old weights

    # --- Decoding

    def step(self):
        """Refill free slots, decode one token in each active one; returns the completions that end with it."""
        began = self.clock()
        for sequence in self._starts():
            self._submit(sequence)
        if not (running := len(self._running)):
            return []
        done = []
        for output in self._engine.step():
            sequence = self._running[output.request_id]
            [new] = output.outputs
            sequence.tokens += [
                (token, True, entry[token].logprob, self.version) for token, entry in zip(new.token_ids, new.logprobs)
            ]
            if new.finish_reason:
                del self._running[output.request_id]
                done.append(self._completion(sequence))
            elif len(sequence.tokens) == sequence.interrupt_at and self._thinks(sequence.ids):  # A.10
                self._restart(output.request_id)
        self.count_step(self.clock() - began, running)
        return done

    def _restart(self, name):
        """Abort a completion's request to vLLM and submit the completion again."""
        self._engine.abort_request([name])
        self._submit(self._running.pop(name))

    def _submit(self, sequence):
        """Submit a completion to vLLM, which goes on after its tokens so far, and after the phrase if that is due."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        if len(sequence.tokens) == sequence.interrupt_at:  # it is submitted at this length only to be interrupted
            sequence.tokens += [(token, False, 0.0, self.version) for token in self.phrase_ids]
        name = str(next(self._names))
        length = len(sequence.tokens)
        self._running[name] = sequence
        sampling = SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_new_tokens - length,
            stop_token_ids=self.eos_ids,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        salt = next((version for _, sampled, _, version in sequence.tokens if sampled), self.version)
        prompt = dict(prompt_token_ids=[*sequence.group.request.prompt.ids, *sequence.ids], cache_salt=str(salt))
        request = sequence.group.request
        self._engine.add_request(name, prompt, sampling, priority=-1 if request.evaluation else request.number)

    def close(self):
        """Drop what is queued or running, and end the worker; the generator cannot be used afterwards."""
        self._running = {}
        self._queue = ()
        self._evaluations = ()
        self._weights = None
        self._engine.engine_core.shutdown()
