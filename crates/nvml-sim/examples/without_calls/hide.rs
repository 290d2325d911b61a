//! Makes functions of the simulator's library unfindable, as if they were not there.

/// Overwrites the names of functions in a library's symbol table: neither `dlsym` nor the loader finds them any longer. Nothing
/// moves, and the code stays.
///
/// # Errors
/// The first name that is no symbol of the library.
pub(crate) fn hide<'n>(library: &mut [u8], names: impl IntoIterator<Item = &'n str>) -> Result<(), String> {
    for name in names {
        let entry = [b"\0", name.as_bytes(), b"\0"].concat();
        let found = library.windows(entry.len()).enumerate().filter(|(_, bytes)| *bytes == entry);
        let places: Vec<usize> = found.map(|(at, _)| at + 1).collect();
        if places.is_empty() {
            return Err(format!("no symbol {name}"));
        }
        places.iter().for_each(|&at| library[at..at + 4].copy_from_slice(b"gone"));
    }
    Ok(())
}
