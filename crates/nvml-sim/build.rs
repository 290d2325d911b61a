//! Links the library's calls to each other within the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // So that a copy without some symbols still loads, and no other library's function of that name is called in their
    // place.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
