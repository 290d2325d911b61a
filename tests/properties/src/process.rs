//! What a process shows of itself in `/proc`: its name comes from its `comm`, program, script or module, and from no
//! other argument.

use gpu_readings::attribution::record::{Stat, Status, boot_seconds};
use process_name::{COMMAND_LIMIT, arguments, command, name};

use crate::choices::{Choose, Unstructured, choices};

/// Programs, some of them interpreters, and titles.
const PROGRAMS: [&str; 24] = [
    "python3.12",
    "/usr/bin/python",
    "pypy3",
    "bash",
    "-sh",
    "perl",
    "ruby",
    "node",
    "Rscript",
    "/usr/lib/R/bin/exec/R",
    "julia",
    "php",
    "lua5.4",
    "java",
    "/opt/a b/c",
    "ray::IDLE",
    "ray::Train.step/x",
    "postgres: writer",
    "C:\\games\\x.exe",
    "/",
    "-",
    ":",
    "python3-dbg",
    "nvidia-smi",
];
/// Options for these programs.
const OPTIONS: &str = "
    -u -m -c - -- -W -X -e -jar -cp -f --file= --args --eval -o +x -I -r --require -um -mx -L -Wx -lc --rcfile
    --module= -d -0 . .. @f -O
";

/// Reads what the kernel shows about a process: the first line is its `comm`, the rest its arguments, each terminated
/// by a zero byte. True if it has a name.
pub fn process(data: &[u8]) -> bool {
    let generated = choices(data).map(|mut u| arbitrary(&mut u));
    let data = generated.as_deref().unwrap_or(data);
    let (comm, cmdline) = data.iter().position(|byte| *byte == b'\n').map_or((data, &b""[..]), |at| data.split_at(at));
    let cmdline = cmdline.strip_prefix(b"\n").unwrap_or(cmdline);

    let found = name(comm, cmdline);
    assert_comes_from_one_place(found.as_deref(), comm, cmdline);
    assert_silent_on_arguments(found.as_deref(), comm, cmdline);
    assert_recorded(comm, cmdline);
    assert_shown(cmdline);
    found.is_some()
}

/// A name is part of `comm` or of one argument, and is absent only if neither `comm` nor the first word contains one.
fn assert_comes_from_one_place(found: Option<&str>, comm: &[u8], cmdline: &[u8]) {
    let Some(found) = found else {
        let zeroth = arguments(cmdline).first().copied().unwrap_or_default();
        let zeroth = zeroth.strip_prefix(b"-").unwrap_or(zeroth);
        let word = zeroth.split(|byte| *byte == b' ').find(|word| !word.is_empty()).unwrap_or_default();
        let last = word.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
        let has_no_name = word.contains(&b'\\') || matches!(last, None | Some(b"." | b".." | b":"));
        assert!(comm.is_empty() && has_no_name, "{}", cmdline.escape_ascii());
        return;
    };
    assert!(!found.is_empty());
    // Names are cut at ASCII characters only, so invalid UTF-8 is replaced in a name as it is in the whole text.
    let from = |whole: &[u8]| String::from_utf8_lossy(whole).contains(found);
    assert!(from(comm) || arguments(cmdline).into_iter().any(from), "{found:?}");
}

/// Arguments after the script or module that became the name never become part of it.
fn assert_silent_on_arguments(found: Option<&str>, comm: &[u8], cmdline: &[u8]) {
    let mut bare = arguments(cmdline);
    let whole = bare.join(&0);
    let program = name(comm, bare.first().copied().unwrap_or_default());
    if found.map(str::to_owned) != program && !whole.is_empty() {
        for secret in ["--token=hunter2", "hunter2", "-mhunter2", "/hunter2.py", "-jar"] {
            bare.push(secret.as_bytes());
            assert_eq!(name(comm, &bare.join(&0)).as_deref(), found, "with {secret}");
            bare.pop();
        }
    }
}

/// Whatever the name is, the fields after it in the `/proc` files are read.
fn assert_recorded(comm: &[u8], cmdline: &[u8]) {
    let start = cmdline.iter().fold(7, |number: u64, byte| number.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let tail = format!("S 1 42 42 0 -1 4194560 10 0 0 0 1 2 0 0 20 0 1 0 {start} 10000 5\n");
    let line = [b"42 (", comm, b") ", tail.as_bytes()].concat();
    assert_eq!(Stat::parse(&line), Some(Stat { comm: comm.to_vec(), start, ended: false, ending: false }));
    // A truncated line gives this start time or none.
    let cut = cmdline.len() % line.len();
    if let Some(stat) = Stat::parse(&line[..cut]) {
        assert!(stat.start == start || cut < line.len() - tail.len(), "{}", line[..cut].escape_ascii());
    }
    Stat::parse(cmdline);
    boot_seconds(cmdline);
    if let Some(status) = Status::parse(cmdline) {
        assert!(cmdline.windows(4).any(|word| word == b"Uid:"), "{status:?} from nowhere");
    }
    // The kernel escapes line breaks in the name in `status`, so that none of them begins a line.
    let escaped: Vec<u8> = comm.iter().flat_map(|byte| std::ascii::escape_default(*byte)).collect();
    let status = [b"Name:\t", &escaped[..], b"\nUid:\t1\t77\t3\t4\nNSpid:\t42\t7\n", cmdline].concat();
    assert_eq!(Status::parse(&status), Some(Status { uid: 77, namespace_pid: Some(7) }));
}

fn assert_shown(cmdline: &[u8]) {
    match command(cmdline) {
        Some(text) => assert!(!text.is_empty() && text.len() <= COMMAND_LIMIT, "{} bytes", text.len()),
        None => assert!(cmdline.iter().all(|byte| *byte == 0)),
    }
}

fn arbitrary(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut data = match u.below(4) {
        0 => u.up_to(15).to_vec(),
        _ => u.pick(&["python3", "ollama_llama_se", "x", "", "a) R 1 (", "c"]).as_bytes().to_vec(),
    };
    data.retain(|byte| *byte != b'\n');
    data.push(b'\n');
    data.extend_from_slice(u.pick(&PROGRAMS).as_bytes());
    for _ in 0..u.below(8) {
        data.push(0);
        match u.below(4) {
            0 => data.extend_from_slice(u.up_to(40)),
            1 => data.extend_from_slice(
                u.pick(&["a/b.py", "x.sh", "Main", "org.example.Main", "/", "Main.java"]).as_bytes(),
            ),
            _ => data.extend_from_slice(u.word(OPTIONS).as_bytes()),
        }
        if u.once_in(8) {
            data.extend_from_slice(u.up_to(20));
        }
    }
    data
}
