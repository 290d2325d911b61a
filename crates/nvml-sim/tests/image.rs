//! The library that a program writes for itself when this crate is built into it.

#![allow(unsafe_code, reason = "the test calls the C functions")]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::path::Path;

use libloading::Library;
use nvml_wrapper::Nvml;

/// The names of the C functions that the sources define, whether directly or through a macro.
fn defined(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            defined(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for after in text.split("fn nvml").skip(1) {
            let rest: String = after.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            names.insert(format!("nvml{rest}"));
        }
    }
}

#[test]
fn the_image_opens_by_its_path_and_has_every_function() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libnvml_sim.so");
    std::fs::write(&path, nvml_sim::image().unwrap()).unwrap();

    let mut names = BTreeSet::new();
    defined(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi"), &mut names);
    names.extend(nvml_sim::internals::NUMBERS.iter().map(|(name, _)| (*name).to_owned()));
    assert!(names.len() > 100 && names.contains("nvmlSimVersion"), "{names:?}");
    // SAFETY: the file holds no code, so nothing runs when it is loaded.
    let library = unsafe { Library::new(&path) }.unwrap();
    let addresses: BTreeSet<usize> = names
        .iter()
        .map(|name| {
            // SAFETY: the symbol is looked up and not called.
            let symbol = unsafe { library.get::<*const ()>(name.as_bytes()) };
            symbol.unwrap_or_else(|error| panic!("{name}: {error}")).addr()
        })
        .collect();
    assert_eq!(addresses.len(), names.len(), "each function has an address of its own");
    // SAFETY: as above.
    assert!(unsafe { library.get::<*const ()>(b"nvmlSimNothing") }.is_err());

    type Configure = unsafe extern "C" fn(*const c_char, *const c_char, *const c_char) -> c_int;
    // SAFETY: this is the type of the function; the text is a C string, and NULL leaves the other settings as they are.
    let status = unsafe {
        let configure = library.get::<Configure>(b"nvmlSimConfigure").unwrap();
        configure(c"eight-h200".as_ptr(), std::ptr::null(), std::ptr::null())
    };
    assert_eq!(status, 0);
    for _ in 0..2 {
        let nvml = Nvml::builder().lib_path(path.as_os_str()).init().unwrap();
        assert_eq!(nvml.device_count().unwrap(), 8);
        let memory = nvml.device_by_index(7).unwrap().memory_info().unwrap();
        assert!(memory.total > 100 << 30 && memory.used <= memory.total, "{memory:?}");
    }
}

#[test]
fn a_scenario_is_judged_without_being_opened() {
    for name in nvml_sim::scenarios() {
        assert_eq!(nvml_sim::check(name), Ok(()));
    }
    let error = nvml_sim::check("nonsense").unwrap_err();
    assert!(nvml_sim::scenarios().all(|name| error.contains(name)), "{error}");
}
