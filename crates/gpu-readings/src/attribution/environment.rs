//! The limit that a process's environment declares.
//!
//! Invariant: of the environment, which may contain secrets, only this variable's value leaves the function that read it.

use text_and_sizes::quantity;

/// The variable, whose value is a quantity such as `20Gi`.
pub(super) const VARIABLE: &str = "VRAM_EXPORTER_GPU_MEMORY_LIMIT";

/// The variable's value cannot be read as an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE} in the environment of process {pid}")]
pub(super) struct InvalidLimit {
    pid: u32,
    source: quantity::Invalid,
}

/// The limit in bytes; `None` if the environment contains none. `environ` holds the variables as
/// `/proc/<pid>/environ` does, each terminated by a zero byte. The first variable with the name counts, as for `getenv`.
pub(super) fn memory_limit(pid: u32, environ: &[u8]) -> Result<Option<u64>, InvalidLimit> {
    // The last variable counts only if it is terminated: the text may be cut off.
    let complete = environ.split_inclusive(|byte| *byte == 0).filter_map(|variable| variable.strip_suffix(b"\0"));
    let value = |variable: &'_ [u8]| variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    let Some(text) = complete.map(value).find_map(|value| value) else { return Ok(None) };
    match quantity::bytes(&String::from_utf8_lossy(&text)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) => Err(InvalidLimit { pid, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::chain;

    fn limit(environ: &[u8]) -> Result<Option<u64>, String> {
        memory_limit(7, environ).map_err(|error| chain(&error))
    }

    #[test]
    fn the_variable_is_found_among_others() {
        assert_eq!(limit(b"A=1\0VRAM_EXPORTER_GPU_MEMORY_LIMIT=20Gi\0B=\xff\0"), Ok(Some(20 << 30)));
        let twice = b"VRAM_EXPORTER_GPU_MEMORY_LIMIT=1\0VRAM_EXPORTER_GPU_MEMORY_LIMIT=2\0";
        assert_eq!(limit(twice), Ok(Some(1)));
        for without in [
            &b""[..],
            b"\0\0",
            b"VRAM_EXPORTER_GPU_MEMORY_LIMIT\0",
            b"VRAM_EXPORTER_GPU_MEMORY_LIMITS=1\0",
            b"X_VRAM_EXPORTER_GPU_MEMORY_LIMIT=1\0",
            b"VRAM_EXPORTER_GPU_MEMORY_LIMIT=20",
        ] {
            assert_eq!(limit(without), Ok(None), "{}", without.escape_ascii());
        }
    }

    #[test]
    fn a_value_that_is_not_an_amount_is_refused() {
        for (value, expected) in [(&b"\xff\n"[..], "\"\u{fffd}\\n\" is not a quantity"), (b"", "is not a quantity")] {
            let environ = [b"VRAM_EXPORTER_GPU_MEMORY_LIMIT=", value, b"\0"].concat();
            let refused = limit(&environ).unwrap_err();
            let begin = "VRAM_EXPORTER_GPU_MEMORY_LIMIT in the environment of process 7: ";
            assert!(refused.starts_with(begin) && refused.contains(expected), "{refused}");
        }
    }
}
