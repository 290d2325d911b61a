//! Shows the simulated GPUs to a program that has the simulator built in and opens NVML by a path, as it would open the
//! driver's library.

use std::error::Error;

use nvml_sim::Settings;
use nvml_wrapper::Nvml;

fn main() -> Result<(), Box<dyn Error>> {
    let scenario = std::env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    nvml_sim::check(&scenario)?;
    nvml_sim::configure(Settings { scenario: Some(scenario), ..Settings::default() })?;
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("libnvidia-ml.so.1");
    std::fs::write(&library, nvml_sim::image()?)?;

    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    for index in 0..nvml.device_count()? {
        let gpu = nvml.device_by_index(index)?;
        println!("{}: {} MiB in use", gpu.name()?, gpu.memory_info()?.used >> 20);
    }
    Ok(())
}
