//! The committed client is what the generator produces from `v1.proto`.

use std::fs;
use std::path::Path;

use generated_files::assert_committed;
use tempfile::TempDir;

#[test]
fn the_generated_client_is_that_of_the_protocol() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let made = TempDir::new().unwrap();
    let mut generator = tonic_prost_build::configure();
    generator = generator.build_server(false).build_transport(false).out_dir(made.path());
    generator.compile_fds(protox::compile(["v1.proto"], [&folder]).unwrap()).unwrap();
    let made = fs::read_to_string(made.path().join("v1.rs")).unwrap();
    assert_committed(&folder.join("v1.rs"), &made);
}
