//! Writing into the caller's memory: NULL is refused, and no byte is written beyond the caller's buffer.

use std::ffi::{c_char, c_uint};

use crate::code::{Answer, Code};

/// Writes a value.
///
/// # Safety
/// `to` is NULL or a pointer from the caller that is valid for a `T`.
pub(super) unsafe fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and the caller of the C function vouches for the rest.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads a value that the caller prepared.
///
/// # Safety
/// `from` is NULL or a pointer from the caller to an initialised `T`.
pub(super) unsafe fn get<T: Copy>(from: *const T) -> Answer<T> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: as above.
    Ok(unsafe { from.read() })
}

/// Writes a string and its terminating NUL.
///
/// # Safety
/// `to` is NULL or a pointer from the caller that is valid for `length` bytes.
pub(super) unsafe fn put_text(to: *mut c_char, length: c_uint, text: &[u8]) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: there is room for the text and its terminating NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Checks the version that the caller put into a struct.
///
/// # Safety
/// `of` is NULL or points to a struct that begins with its version.
pub(super) unsafe fn check_version<T>(of: *const T, version: u32) -> Answer {
    // SAFETY: every versioned struct of NVML begins with this field.
    if unsafe { get(of.cast::<c_uint>())? } == struct_version::<T>(version) {
        Ok(())
    } else {
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    }
}

/// `NVML_STRUCT_VERSION` from `nvml.h`.
pub(super) fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// A string in a fixed C array, truncated to fit.
pub(super) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}
