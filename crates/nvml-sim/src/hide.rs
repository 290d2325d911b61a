//! Removes functions from a copy of the library, so that it looks like the library of an old driver that lacks them.

/// Overwrites the names of functions in the symbol table of a library, so that neither `dlsym` nor the loader finds
/// them afterwards. The layout of the file does not change, and the functions' code stays in it.
///
/// # Errors
/// Names the first function that is not a symbol of the library.
pub fn hide<'n>(library: &mut [u8], names: impl IntoIterator<Item = &'n str>) -> Result<(), String> {
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
