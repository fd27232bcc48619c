"""Which calls only look, and which only report. What is not listed here may do anything."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass

_BUILTINS = frozenset(
    "abs all any bool bytes callable chr dict dir divmod enumerate float format frozenset getattr hasattr hex id int "
    "isinstance issubclass len list max min object oct ord range repr reversed round set slice sorted str sum tuple "
    "type vars zip".split()
)
# Methods that look at their object, of tensors, strings and mappings. No name here belongs to a method of a
# common type that changes the object: `sort`, `pop`, `append`, `update`, `add`, and all that end in `_`.
_METHODS = frozenset(
    "abs all allclose amax amin any argmax argmin argsort batch_size bfloat16 bool center chunk clone contiguous cpu data_ptr "
    "detach device dim double element_size endswith eq equal exp expand flatten float format gather ge "
    "gt half hexdigest index_select int isfinite isinf isnan isoformat item items join keys le ljust log long lower "
    "lstrip lt matmul max mean median min narrow ndimension ne nonzero norm numel numpy permute pow prod ravel "
    "replace reshape rjust rsplit rstrip select shape size softmax split sqrt squeeze startswith std storage_offset "
    "stride strip sum t title to tolist topk transpose type unbind unflatten unique unsqueeze untyped_storage upper "
    "values var view zfill named_parameters parameters named_modules named_buffers buffers state_dict "
    "total_seconds strftime".split()
)
# Of these a tensor's give another tensor, while a module's convert the module itself.
CONVERTS = frozenset("bfloat16 cpu double float half to type".split())
# Questions that torch and the engine answer without doing anything; a name alone promises nothing (`is_done_and_pop`).
_QUESTIONS = frozenset(
    "is_complex is_conj is_contiguous is_cuda is_floating_point is_inference is_leaf is_meta is_neg is_nonzero is_pinned "
    "is_set_to is_shared is_signed is_sparse is_available is_initialized is_absolute is_dir is_file is_integer "
    "is_alive is_decode is_decode_or_idle is_dllm_extend is_draft_extend is_draft_extend_v2 is_dummy_first is_extend "
    "is_extend_or_draft_extend_or_mixed is_idle is_mixed is_prebuilt is_prefill is_split_prefill is_target_verify "
    "is_cuda_graph is_extend_without_speculative is_eagle is_eagle3 is_none is_standalone is_ngram is_dflash "
    "is_spec_v2 is_compiling is_scripting is_tracing".split()
)
_RANK = re.compile(r"_?get_(?:[a-z0-9]+_)*(?:rank|world_size)|get_device(?:_name|_capability|_properties)?")
ASKING = re.compile(r"(?:is|has)_[a-z0-9_]+")
_MODULES = {
    "os": "getpid getenv getcwd cpu_count environ.get environ.items path.join path.exists path.basename path.dirname "
    "path.abspath path.isdir path.isfile path.expanduser",
    "sys": "getsizeof _getframe exc_info",
    "time": "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns strftime localtime gmtime ctime",
    "datetime": "datetime.now datetime.utcnow now utcnow",
    "json": "dumps",
    "math": "*",
    "pprint": "pformat",
    "traceback": "format_stack format_exc format_exception extract_stack",
    "inspect": "stack currentframe getframeinfo getsource",
    "threading": "get_ident current_thread get_native_id",
    "socket": "gethostname",
    "logging": "getLogger",
    "pathlib": "Path",
    "collections": "defaultdict deque Counter OrderedDict",
    "hashlib": "md5 sha1 sha256",
    "torch": "norm linalg.norm isnan isinf isfinite all any equal allclose isclose abs amax amin max min mean std var "
    "sum count_nonzero is_tensor numel stack cat dot matmul cosine_similarity nn.functional.cosine_similarity topk "
    "softmax is_grad_enabled no_grad inference_mode tensor as_tensor get_default_dtype device argmax "
    "distributed.get_rank distributed.get_world_size distributed.is_initialized distributed.is_available "
    "cuda.current_device cuda.device_count cuda.is_available cuda.memory_allocated cuda.memory_reserved "
    "cuda.max_memory_allocated cuda.is_current_stream_capturing cuda.get_device_name",
    "numpy": "abs all allclose any array asarray isfinite isinf isnan linalg.norm max mean min std sum",
}
_LOOKS = {module: frozenset(names.split()) for module, names in _MODULES.items()}

# Reports that are wanted or not depending on what they say.
_SAYS = frozenset(
    "print pprint.pprint pprint.pp sys.stderr.write sys.stdout.write sys.__stderr__.write sys.__stdout__.write "
    "logging.debug logging.info logging.warning logging.error logging.critical logging.exception logging.log "
    "warnings.warn traceback.print_stack traceback.print_exc sys.stderr.flush sys.stdout.flush".split()
)
_PRINTS = frozenset(
    "print pprint.pprint pprint.pp sys.stderr.write sys.stdout.write sys.stderr.flush sys.stdout.flush".split()
)
_LOG_METHODS = re.compile(r"(?:debug|info|warn|warning|error|critical|exception|log)(?:_once|_rank0|_on_rank0)?")
_LOGGER = re.compile(r"(?:^|_)log(?:ger|ging)?$", re.I)
_SAYING_NAME = re.compile(
    r"(?:rank_?(?:0|zero)_)?(?:print|log|warn|log_debug|log_info|print_info|print_warning)(?:_once|_(?:on_)?rank_?(?:0|zero))?"
)

# Stops in a debugger: never wanted in what is shipped.
STOPS = frozenset(
    "breakpoint pdb.set_trace pdb.post_mortem ipdb.set_trace pudb.set_trace debugpy.breakpoint "
    "icecream.ic debugpy.wait_for_client pydevd.settrace pydevd_pycharm.settrace IPython.embed torch.distributed.breakpoint".split()
)
# Reports only under a debug switch: they write files, wait for the device, or change how tensors are printed.
_DUMPS = frozenset(
    "torch.save numpy.save numpy.savez numpy.savetxt json.dump pickle.dump os.makedirs os.mkdir "
    "safetensors.torch.save_file torch.cuda.synchronize torch.set_printoptions numpy.set_printoptions".split()
)
_DUMP_METHODS = frozenset("mkdir write_text write_bytes tofile".split())
_HANDLE_METHODS = frozenset("write writelines flush close".split())
OPENS = frozenset(("open", "gzip.open", "io.open"))


@dataclass(frozen=True)
class Names:
    """What a file's names stand for, wherever in the file they are bound."""

    modules: dict[str, str]  # name -> the dotted thing that an import bound it to
    rebound: frozenset[str]  # names that something other than an import binds
    handles: frozenset[str]  # names that never stand for anything but a file opened here
    called: frozenset[str] = frozenset()  # what the file calls: functions, classes, torch's modules

    def dotted(self, node: ast.expr) -> str | None:
        """`torch.linalg.norm` for a chain of names, its root replaced by what was imported under it."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "__import__":
            node = ast.Name(getattr(node.args[0], "value", "") if node.args else "")
        if not isinstance(node, ast.Name):
            return None
        root = self.modules.get(node.id, node.id)
        return ".".join([root, *reversed(parts)])

    def imported(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.modules and node.id not in self.rebound


def looks_only(call: ast.Call, names: Names) -> bool:
    """Whether calling this (its arguments aside) reads and returns, and does nothing else."""
    function = call.func
    if names.imported(function):
        name = names.dotted(function) or ""
        module, _, rest = name.partition(".")
        if module in _LOOKS:
            return rest in _LOOKS[module] or "*" in _LOOKS[module]
        return _asks(name.rpartition(".")[2])
    if isinstance(function, ast.Name):
        if function.id == "__import__":
            return getattr(call.args[0], "value", None) in sys.stdlib_module_names if call.args else False
        known = function.id in _BUILTINS and function.id not in names.rebound
        return known or _asks(function.id)
    if isinstance(function, ast.Attribute):
        if function.attr == "get":  # of a mapping; a queue's takes no key
            return bool(call.args) and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
        if function.attr in ("decode", "encode"):  # of a string or a tokenizer; a model's may do anything
            return all(isinstance(part, ast.Constant) for part in call.args) or "token" in ast.unparse(function.value)
        if function.attr == "join":  # of a string; a thread's takes nothing, or seconds
            return len(call.args) == 1 and not isinstance(getattr(call.args[0], "value", ""), (int, float))
        if function.attr == "replace":  # of a string; a path's takes one argument, and moves the file
            return len(call.args) > 1
        if function.attr in CONVERTS and names.dotted(function.value) in names.called:
            return False  # of a module, which it changes
        if function.attr == "norm":  # of a tensor; a model's own takes the states, and may change them
            return all(isinstance(part, ast.Constant) for part in call.args)
        return function.attr in _METHODS or _asks(function.attr)
    return False


def _asks(name: str) -> bool:
    return name in _QUESTIONS or bool(_RANK.fullmatch(name))


def waits(call: ast.Call) -> bool:
    """Whether a call of the kind `dump` writes nothing: it waits for the device, or changes how tensors are printed."""
    return getattr(call.func, "attr", "") in ("synchronize", "set_printoptions")


def report_kind(call: ast.Call, names: Names) -> str | None:
    """`print`, `logger`, `dump` or `breakpoint` for a call that reports; None for any other."""
    function = call.func
    name = names.dotted(function)
    if name is not None and name.partition(".")[0] in names.rebound:
        name = None
    if name in STOPS:
        return "breakpoint"
    if name in _SAYS:
        return "print" if name in _PRINTS else "logger"
    if name in _DUMPS:
        return "dump"
    if isinstance(function, ast.Attribute):
        holder = function.value
        last = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
        if _LOGGER.search(last) and _LOG_METHODS.fullmatch(function.attr):
            return "logger"
        if function.attr in _HANDLE_METHODS and last in names.handles:
            return "dump"
        if function.attr in _DUMP_METHODS and not names.imported(function):
            return "dump"
    if isinstance(function, ast.Name) and _SAYING_NAME.fullmatch(function.id):
        return "print"
    return None
