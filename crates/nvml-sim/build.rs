//! Links the library so that calls to its own functions stay within it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A copy without some symbols therefore still loads, and no other library's function of the same name is called
    // instead.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
