//! The committed client is what the generator produces from `v1.proto`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

#[test]
fn the_generated_client_is_that_of_the_protocol() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let made = TempDir::new().unwrap();
    let mut generator = tonic_prost_build::configure();
    generator = generator.build_server(false).build_transport(false).out_dir(made.path());
    generator.compile_fds(protox::compile(["v1.proto"], [&folder]).unwrap()).unwrap();
    let made = fs::read_to_string(made.path().join("v1.rs")).unwrap();
    let committed = folder.join("v1.rs");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&committed, &made).unwrap();
    }
    assert!(fs::read_to_string(&committed).unwrap() == made, "UPDATE_GOLDEN=1 writes {} again", committed.display());
}
