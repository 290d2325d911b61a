//! The name to show for a Linux process, from its `comm` and its `cmdline`: `train.py` instead of `python3.12`.
//!
//! [`name()`] is a pure function: it opens no file and depends on nothing but its arguments. It parses the
//! options of Python, shells, Perl, Ruby, Node.js, Java, R, Julia, PHP and Lua, and recognises titles that programs
//! write over their arguments.
//!
//! ```
//! let name = |comm: &str, cmdline: &str| process_name::name(comm.as_bytes(), cmdline.as_bytes());
//!
//! assert_eq!(name("python3", "python3\0-u\0/home/ada/train.py\0--token=secret\0").as_deref(), Some("train.py"));
//! assert_eq!(name("python3", "python3\0-m\0torch.distributed.run\0t.py\0").as_deref(), Some("torch.distributed.run"));
//! assert_eq!(name("bash", "bash\0-c\0export KEY=secret; ./x\0").as_deref(), Some("bash"));
//! assert_eq!(name("VLLM::EngineCor", "VLLM::EngineCore\0\0\0").as_deref(), Some("VLLM::EngineCore"));
//! ```
//!
//! # What can be trusted
//!
//! A process chooses both strings, so a name is only what the process claims. The strings may hold any bytes and may be
//! cut off anywhere. No argument after the script, and no value of an option, ever becomes part of a name: both can
//! contain secrets. [`command`] returns the whole command line, secrets included.

mod cmdline;
mod interpreter;
mod name;

pub use cmdline::{COMMAND_LIMIT, arguments, command};
pub use name::name;
