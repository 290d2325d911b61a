//! Which argument of an interpreter names the program that it runs.
//!
//! One table row per interpreter: which options take a value, and which run code from the command line. Only a script's
//! path or the name of a module or class is ever returned, because an option's value can contain a secret.

/// What an interpreter runs, according to its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Runs<'a> {
    /// A script by its path.
    Script(&'a [u8]),
    /// A module or class by its full name.
    Module(&'a [u8]),
    /// Code from the command line or from its input, or nothing at all.
    Itself,
}

/// How an interpreter reads its options.
struct Dialect {
    /// Short options that are followed by a value, attached or as the next argument.
    value: &'static [u8],
    /// Short options whose value, if any, is attached.
    attached: &'static [u8],
    /// Short options whose value, if any, is a number or begins with a colon; further options can follow a number.
    number: &'static [u8],
    /// Short options that take code to run.
    code: &'static [u8],
    /// Short options that name a module.
    module: &'static [u8],
    /// Short options that name the script.
    script: &'static [u8],
    /// Long options, separated by spaces, that are followed by a value unless it is attached with `=`.
    long_value: &'static str,
    /// Long options that take code to run.
    long_code: &'static str,
    /// Long options with the script after `=`.
    long_script: &'static str,
}

const PLAIN: Dialect = Dialect {
    value: b"",
    attached: b"",
    number: b"",
    code: b"",
    module: b"",
    script: b"",
    long_value: "",
    long_code: "",
    long_script: "",
};

const PYTHON: Dialect =
    Dialect { value: b"WXQ", code: b"c", module: b"m", long_value: "--check-hash-based-pycs", ..PLAIN };
const SHELL: Dialect = Dialect { value: b"oO", code: b"cs", long_value: "--rcfile --init-file --emulate", ..PLAIN };
const PERL: Dialect = Dialect { value: b"I", attached: b"CDFMVimx", number: b"0dl", code: b"eE", ..PLAIN };
const RUBY: Dialect =
    Dialect { value: b"CEIr", attached: b"Fix", number: b"0TW", code: b"e", long_value: "--encoding", ..PLAIN };
const NODE: Dialect = Dialect {
    value: b"rC",
    code: b"ep",
    long_value: "--require --import --loader --experimental-loader --conditions --title --env-file \
        --env-file-if-exists --inspect-port",
    long_code: "--eval --print",
    ..PLAIN
};
const RSCRIPT: Dialect = Dialect { value: b"g", code: b"e", ..PLAIN };
const R: Dialect = Dialect {
    value: b"gd",
    code: b"e",
    script: b"f",
    long_value: "--gui --debugger --encoding",
    long_code: "--args",
    long_script: "--file",
    ..PLAIN
};
const JULIA: Dialect = Dialect {
    value: b"CHJLpt",
    attached: b"Og",
    code: b"eE",
    module: b"m",
    long_value: "--check-bounds --color --cpu-target --home --load --machine-file --procs --startup-file --sysimage \
        --threads",
    long_code: "--eval --print",
    ..PLAIN
};
const PHP: Dialect = Dialect {
    value: b"cdtz",
    code: b"rBREFS",
    script: b"f",
    long_value: "--php-ini --define --docroot --zend-extension",
    long_code: "--run --process-begin --process-code --process-end --process-file --server",
    ..PLAIN
};
const LUA: Dialect = Dialect { value: b"el", attached: b"jO", ..PLAIN };

/// What `program` (a file name) runs if started with `args`; `None` if it is not an interpreter.
pub(crate) fn runs<'a>(program: &[u8], args: &[&'a [u8]]) -> Option<Runs<'a>> {
    if program == b"java" {
        return Some(java(args));
    }
    Some(walk(dialect(program)?, args))
}

fn dialect(program: &[u8]) -> Option<&'static Dialect> {
    let program = program.strip_suffix(b"-dbg").unwrap_or(program);
    let family = match program.iter().position(|b| b.is_ascii_digit()) {
        // File names can contain a version: python3.13t, lua5.4, pypy3.
        Some(at) if program[at..].iter().all(|b| b.is_ascii_digit() || b".-tdmu".contains(b)) => &program[..at],
        Some(_) => return None,
        None => program,
    };
    Some(match family.strip_suffix(b"-").unwrap_or(family) {
        b"python" | b"pypy" | b"pypy-c" => &PYTHON,
        b"bash" | b"sh" | b"dash" | b"ash" | b"ksh" | b"mksh" | b"zsh" => &SHELL,
        b"perl" => &PERL,
        b"ruby" => &RUBY,
        b"node" | b"nodejs" => &NODE,
        b"Rscript" => &RSCRIPT,
        b"R" => &R,
        b"julia" => &JULIA,
        b"php" => &PHP,
        b"lua" | b"luajit" => &LUA,
        _ => return None,
    })
}

/// What one option means for the search.
enum Step<'a> {
    Next,
    SkipValue,
    Done(Runs<'a>),
    ValueIs(fn(&'a [u8]) -> Runs<'a>),
}

fn walk<'a>(dialect: &Dialect, args: &[&'a [u8]]) -> Runs<'a> {
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let step = match arg {
            b"-" => return Runs::Itself,
            b"--" => return args.next().map_or(Runs::Itself, Runs::Script),
            _ if arg.starts_with(b"--") => long(dialect, arg),
            _ if arg.starts_with(b"-") => cluster(dialect, &arg[1..]),
            // Shells switch options off with a plus sign.
            _ if arg.starts_with(b"+") && std::ptr::eq(dialect, &SHELL) => cluster(dialect, &arg[1..]),
            _ => return Runs::Script(arg),
        };
        match step {
            Step::Next => {}
            Step::SkipValue => drop(args.next()),
            Step::Done(runs) => return runs,
            Step::ValueIs(what) => return args.next().map_or(Runs::Itself, what),
        }
    }
    Runs::Itself
}

fn long<'a>(dialect: &Dialect, arg: &'a [u8]) -> Step<'a> {
    let (key, value) = match arg.iter().position(|&b| b == b'=') {
        Some(at) => (&arg[..at], Some(&arg[at + 1..])),
        None => (arg, None),
    };
    let among = |list: &str| list.split(' ').any(|name| name.as_bytes() == key);
    match value {
        _ if among(dialect.long_code) => Step::Done(Runs::Itself),
        Some(value) if among(dialect.long_script) => Step::Done(Runs::Script(value)),
        None if among(dialect.long_value) => Step::SkipValue,
        _ => Step::Next,
    }
}

/// Walks short options written together, as in `-uBm module`.
fn cluster<'a>(dialect: &Dialect, letters: &'a [u8]) -> Step<'a> {
    for (at, letter) in letters.iter().enumerate() {
        let rest = &letters[at + 1..];
        let named = |what: fn(&'a [u8]) -> Runs<'a>| {
            if rest.is_empty() { Step::ValueIs(what) } else { Step::Done(what(rest)) }
        };
        if dialect.code.contains(letter) {
            return Step::Done(Runs::Itself);
        } else if dialect.module.contains(letter) {
            return named(Runs::Module);
        } else if dialect.script.contains(letter) {
            return named(Runs::Script);
        } else if dialect.value.contains(letter) {
            // In a shell, `-eo pipefail` and `-oe pipefail` mean the same thing: an option's value is never attached.
            let attached = !rest.is_empty() && !std::ptr::eq(dialect, &SHELL);
            return if attached { Step::Next } else { Step::SkipValue };
        } else if dialect.attached.contains(letter) || dialect.number.contains(letter) && rest.starts_with(b":") {
            return Step::Next;
        }
    }
    Step::Next
}

/// Java's long options have one dash, and only some of them take the next argument.
fn java<'a>(args: &[&'a [u8]]) -> Runs<'a> {
    const VALUE: &str = "-cp -classpath --class-path -p --module-path --upgrade-module-path --add-modules --add-reads \
        --add-exports --add-opens --limit-modules --patch-module --source --enable-native-access";
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        match arg {
            b"-jar" => return args.next().map_or(Runs::Itself, Runs::Script),
            b"-m" | b"--module" => return args.next().map_or(Runs::Itself, Runs::Module),
            _ if VALUE.split(' ').any(|name| name.as_bytes() == arg) => drop(args.next()),
            _ if arg.starts_with(b"--module=") => return Runs::Module(&arg[b"--module=".len()..]),
            _ if arg.starts_with(b"-") || arg.starts_with(b"@") => {}
            // A single source file is a path; a class is not.
            _ if arg.ends_with(b".java") => return Runs::Script(arg),
            _ => return Runs::Module(arg),
        }
    }
    Runs::Itself
}
