//! The name of a process, from its `comm` and its arguments.
//!
//! Invariant: an argument never becomes part of a name, because arguments can contain secrets. The only
//! exceptions are the executable's own name and, for an interpreter, the file name of its script or the name of its
//! module or class.

use crate::cmdline::arguments;
use crate::interpreter::{Runs, runs};

/// How many bytes of a name the kernel keeps in `comm`.
const COMM_MAX: usize = 15;

/// The name to show for a process: the executable's file name, or the script's for an interpreter (`train.py`), or the
/// first word of a title that the process wrote over its arguments (`ray::IDLE`), or `comm` if these give no name.
///
/// `comm` is the kernel's name, at most 15 bytes; `cmdline` holds the arguments, each zero-terminated. The process
/// can choose both. Bytes that are not UTF-8 are replaced; control characters are kept. `None` if neither contains a
/// name.
pub fn name(comm: &[u8], cmdline: &[u8]) -> Option<String> {
    let args = arguments(cmdline);
    let chosen = match args.split_first() {
        Some((zeroth, rest)) => {
            let program = program(comm, zeroth);
            match runs(program, rest) {
                // A dash means the interpreter's standard input.
                Some(Runs::Script(path)) if path != b"-" => nonempty(file_name(path)).unwrap_or(program),
                Some(Runs::Module(module)) => nonempty(module).unwrap_or(program),
                Some(Runs::Script(_) | Runs::Itself) | None => program,
            }
        }
        None => b"",
    };
    let bytes = nonempty(chosen).or_else(|| nonempty(comm))?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The executable's file name as the zeroth argument gives it, or the first word if that argument is a title.
fn program<'a>(comm: &[u8], zeroth: &'a [u8]) -> &'a [u8] {
    // A login shell's zeroth argument is `-bash`.
    let zeroth = zeroth.strip_prefix(b"-").unwrap_or(zeroth);
    if !zeroth.contains(&b' ') {
        // `ray::Model.load/a` is a title, not a path.
        let title = zeroth.windows(2).any(|pair| pair == b"::") && !zeroth.starts_with(b"/");
        return if title { zeroth } else { without_colon(file_name(zeroth)) };
    }
    // This is a path that contains a space, or a title with words after the name. `comm` shows which of the two it is.
    let whole = file_name(zeroth);
    if !comm.is_empty() && whole == comm {
        return whole;
    }
    if comm.len() == COMM_MAX && whole.starts_with(comm) {
        let tail = &whole[COMM_MAX..];
        let more = tail.iter().position(|&b| b == b' ').unwrap_or(tail.len());
        return &whole[..COMM_MAX + more];
    }
    let word = zeroth.split(|&b| b == b' ').find(|word| !word.is_empty()).unwrap_or_default();
    without_colon(file_name(word))
}

/// The part after the last separator; for a path that ends in one, the directory's name. Empty if the path does not
/// name a file.
fn file_name(path: &[u8]) -> &[u8] {
    if is_descriptor(path) {
        return b"";
    }
    let windows = matches!(path, [drive, b':', b'\\', ..] if drive.is_ascii_alphabetic());
    let separator = if windows { b'\\' } else { b'/' };
    let end = path.iter().rposition(|&b| b != separator).map_or(0, |last| last + 1);
    let path = &path[..end];
    let name = path.iter().rposition(|&b| b == separator).map_or(path, |at| &path[at + 1..]);
    if matches!(name, b"." | b"..") { b"" } else { name }
}

/// Whether the path refers to an open file without naming it: `/dev/fd/3`, `/proc/self/fd/3`, `/dev/stdin`,
/// `/proc/self/exe`.
fn is_descriptor(path: &[u8]) -> bool {
    if !path.starts_with(b"/") {
        return false;
    }
    let names: Vec<_> = path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    matches!(
        names[..],
        [b"dev", b"stdin" | b"stdout" | b"stderr"]
            | [b"dev", b"fd", _]
            | [b"proc", _, b"exe"]
            | [b"proc", _, b"fd", _]
            | [b"proc", _, b"task", _, b"fd", _]
    )
}

fn without_colon(word: &[u8]) -> &[u8] {
    word.strip_suffix(b":").unwrap_or(word)
}

fn nonempty(bytes: &[u8]) -> Option<&[u8]> {
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (comm, arguments separated by `|`, name).
    const TABLE: &[(&str, &str, &str)] = &[
        // Plain programs.
        ("nvidia-smi", "nvidia-smi", "nvidia-smi"),
        ("gmx", "/usr/local/gromacs/bin/gmx|mdrun|-s|topol.tpr", "gmx"),
        ("ollama_llama_se", "/var/lib/ollama/runners/cuda_v12/ollama_llama_server|--model|/m/x", "ollama_llama_server"),
        ("Xorg", "/usr/lib/xorg/Xorg|:0|-seat|seat0", "Xorg"),
        ("bash", "-bash", "bash"),
        ("My Viewer", "/opt/My Tools/bin/My Viewer|--file|x", "My Viewer"),
        ("a very long nam", "/opt/a very long name here", "a very long name"),
        ("game.exe", "Z:\\home\\me\\game.exe|-fullscreen", "game.exe"),
        // Python.
        ("python", "python|train.py|--token=hunter2", "train.py"),
        ("python3", "/opt/conda/bin/python3.12|-u|/home/ada/exp/train.py|--lr|3", "train.py"),
        ("python", "python|-W|ignore|-X|dev|-B|-O|-u|a/b/main.py|x.py", "main.py"),
        ("python", "python|-Wignore|-Xfaulthandler|main.py", "main.py"),
        ("python3", "python3|-m|vllm.entrypoints.openai.api_server|--api-key|s", "vllm.entrypoints.openai.api_server"),
        ("python3", "python3|-um|torch.distributed.run|t.py", "torch.distributed.run"),
        ("python3", "python3|-mhttp.server", "http.server"),
        ("python3", "python3.12|-c|from multiprocessing.spawn import spawn_main|--multiprocessing-fork", "python3.12"),
        ("python3", "/usr/bin/python3|/usr/local/bin/vllm|serve|meta/llama", "vllm"),
        ("torchrun", "/usr/bin/python3|/usr/local/bin/torchrun|--nproc-per-node=8|train.py", "torchrun"),
        ("pt_main_thread", "/opt/venv/bin/python|-u|train.py", "train.py"),
        ("python", "python", "python"),
        ("python", "python|-", "python"),
        ("python", "python|--|-", "python"),
        ("python", "python|-u|/dev/stdin|x", "python"),
        ("python3", "python3|/proc/self/fd/12", "python3"),
        ("python3", "python3|//dev/./fd/12", "python3"),
        ("python3", "python3|dev/fd/12.py", "12.py"),
        ("python3", "python3|/dev/shm/train.py", "train.py"),
        ("python3", "python3|/proc/4711/root/srv/train.py", "train.py"),
        ("python", "python|--|-odd.py", "-odd.py"),
        ("python", "python|--check-hash-based-pycs|always|x.py", "x.py"),
        ("python", "python|-m", "python"),
        ("python", "python|.", "python"),
        ("pypy3", "pypy3|run.py", "run.py"),
        ("python3.13t", "python3.13t|x.py", "x.py"),
        ("python-build", "python-build|install|3", "python-build"),
        // Shells.
        ("run.sh", "/bin/bash|/usr/local/bin/run.sh|arg", "run.sh"),
        ("bash", "bash|-c|export KEY=secret; ./x", "bash"),
        ("bash", "bash|-lc|secret", "bash"),
        ("bash", "bash|-euo|pipefail|job.sh", "job.sh"),
        ("bash", "bash|-O|extglob|+x|--rcfile|/etc/x|job.sh", "job.sh"),
        ("sh", "sh|-e|job.sh", "job.sh"),
        ("bash", "bash|/dev/fd/3", "bash"),
        ("bash", "bash|-x|/dev/fd/63|secret", "bash"),
        ("bash", "bash|-s|secret", "bash"),
        ("sh", "sh|/proc/4711/task/4712/fd/3", "sh"),
        // Other interpreters.
        ("perl", "perl|-w|-I|lib|-MList::Util|tool.pl|a", "tool.pl"),
        ("perl", "perl|-ne|print secret", "perl"),
        ("perl", "perl|-lane|print secret|table", "perl"),
        ("perl", "perl|-l012ne|print secret", "perl"),
        ("perl", "perl|-0777pe|print secret", "perl"),
        ("perl", "perl|-de|secret", "perl"),
        ("perl", "perl|-d:Trace|-l|tool.pl|a", "tool.pl"),
        ("ruby", "ruby|-0777ne|puts secret", "ruby"),
        ("ruby", "ruby|-Kue|puts secret", "ruby"),
        ("ruby", "ruby|-W:no-deprecated|-W0|serve.rb", "serve.rb"),
        ("ruby", "ruby|-I|lib|-rjson|serve.rb", "serve.rb"),
        ("node", "node|--max-old-space-size=4096|-r|./hook.js|/srv/app/server.js", "server.js"),
        ("node", "node|--env-file|secret.env|server.js", "server.js"),
        ("node", "node|--require|./hook.js|--eval|secret", "node"),
        ("node", "node|-pe|secret", "node"),
        ("java", "java|-Xmx4g|-cp|/a:/b|-Dkey=secret|org.example.Main|arg", "org.example.Main"),
        ("java", "/usr/bin/java|-jar|/opt/app/service.jar|--pw=x", "service.jar"),
        ("java", "java|--add-opens|a/b=ALL|-m|my.mod/my.Main", "my.mod/my.Main"),
        ("java", "java|-version", "java"),
        ("Rscript", "Rscript|--vanilla|fit.R|secret", "fit.R"),
        ("R", "/usr/lib/R/bin/exec/R|--no-echo|--no-restore|--file=jobs/fit.R|--args|secret", "fit.R"),
        ("R", "/usr/lib/R/bin/exec/R|--no-echo|--args|secret", "R"),
        ("R", "/usr/lib/R/bin/exec/R|-f|-", "R"),
        ("R", "/usr/lib/R/bin/exec/R|--file=-", "R"),
        ("R", "/usr/lib/R/bin/exec/R|--file=/dev/stdin", "R"),
        ("php", "php|-f|/dev/stdin", "php"),
        ("perl", "perl|/dev/fd/63", "perl"),
        ("java", "java|-jar|/proc/self/fd/9", "java"),
        ("julia", "julia|--threads|4|--project=.|-O3|-L|pre.jl|sim.jl|x", "sim.jl"),
        ("julia", "julia|-e|secret", "julia"),
        ("php", "php|-d|memory_limit=1G|-f|job.php|x", "job.php"),
        ("php", "php|-r|secret", "php"),
        ("php", "php|--process-code|secret", "php"),
        ("php", "php|-t|secret|-S|localhost:80", "php"),
        ("lua5.4", "lua5.4|-l|mod|-e|secret|run.lua", "run.lua"),
        ("luajit", "luajit|-O3|-joff|run.lua", "run.lua"),
        // Titles.
        ("ray::IDLE", "ray::IDLE||||", "ray::IDLE"),
        ("ray::Train", "ray::Trainer.step/secret", "ray::Trainer.step/secret"),
        ("VLLM::EngineCor", "VLLM::EngineCore|||", "VLLM::EngineCore"),
        ("postgres", "postgres: writer   |||", "postgres"),
        ("nginx", "nginx: master process /usr/sbin/nginx -g daemon off;", "nginx"),
        ("sshd", "sshd: root@pts/0", "sshd"),
        ("chrome", "/opt/google/chrome/chrome --type=gpu-process --key=/a/secret", "chrome"),
        ("chrome_crashpad", "/opt/chrome_crashpad_handler --monitor-self", "chrome_crashpad_handler"),
        ("sglang::schedul", "sglang::scheduler_TP0", "sglang::scheduler_TP0"),
        // Programs that were started from an open file by its descriptor number.
        ("trainer", "/proc/self/fd/3|--key=secret", "trainer"),
        ("trainer", "/dev/fd/3", "trainer"),
        ("chrome", "/proc/self/exe --type=gpu-process --key=secret", "chrome"),
        // No name in the arguments.
        ("kworker/0:1", "", "kworker/0:1"),
        ("ended", "|||", "ended"),
        ("odd", "|x|y", "odd"),
        ("odd", "/", "odd"),
        ("odd", "- -", "-"),
        ("odd", "  ", "odd"),
        ("odd", ":", "odd"),
    ];

    #[test]
    fn real_command_lines_give_their_names() {
        for &(comm, args, expected) in TABLE {
            let cmdline: Vec<u8> = args.bytes().map(|b| if b == b'|' { 0 } else { b }).chain([0]).collect();
            let cmdline = if args.is_empty() { Vec::new() } else { cmdline };
            assert_eq!(name(comm.as_bytes(), &cmdline).as_deref(), Some(expected), "{comm}: {args}");
        }
    }

    #[test]
    fn any_bytes_can_be_a_name() {
        assert_eq!(name(b"x", b"/bin/\xff\x01\n\"\0").as_deref(), Some("\u{fffd}\u{1}\n\""));
        assert_eq!(name(b"\xfe", b"").as_deref(), Some("\u{fffd}"));
        assert_eq!(name(b"", b""), None);
        assert_eq!(name(b"", b"\0\0"), None);
    }

    #[test]
    fn arguments_cut_off_anywhere_still_give_a_name() {
        for &(comm, args, _) in TABLE {
            let cmdline: Vec<u8> = args.bytes().map(|b| if b == b'|' { 0 } else { b }).collect();
            for end in 0..cmdline.len() {
                assert!(name(comm.as_bytes(), &cmdline[..end]).is_some_and(|name| !name.is_empty()));
            }
        }
    }
}
