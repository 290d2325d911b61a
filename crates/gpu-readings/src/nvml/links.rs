//! The links between GPUs (NVLink), between a GPU and the chip beside it (C2C), and the fabric that NVLinks form.

use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::field_id as id;

use super::device::Device;
use super::error::{Error, Severity};
use super::raw::{self, FIELD_CALL};
use crate::faults::Reason;
use crate::snapshot::{C2cLinks, Fabric, FabricState, NvlinkError, NvlinkErrors, Nvlinks};

/// The most links that are taken for plausible: `NVML_NVLINK_MAX_LINKS` of the `nvml.h` of driver 615, rounded up. A Grace
/// Hopper chip has 10 C2C links.
const MOST_LINKS: u64 = 64;
/// The scope of a field that stands for all links (`nvml.h`, for the fields of traffic; DCGM 4.6 reads those of NVLink 5 with it).
const ALL_LINKS: u32 = u32::MAX;
const LINK_STATE: &str = "nvmlDeviceGetNvLinkState";

type Result<T> = std::result::Result<T, Error>;

/// The counters of one link, as far as nvml-wrapper has them, in the order of [`NvlinkError`].
const OF_A_LINK: [Option<ErrorCounter>; NvlinkError::ALL.len()] = [
    Some(ErrorCounter::DlReplay),
    Some(ErrorCounter::DlRecovery),
    Some(ErrorCounter::DlCrcFlit),
    Some(ErrorCounter::DlCrcData),
    None,
];

/// A field that the GPU or the driver does not have is `None`. The fields of one generation of NVLink are asked of all, and what
/// a driver answers for those of another is not documented, so an unknown error is taken for the same.
fn known(field: Result<u64>) -> Result<Option<u64>> {
    match field {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.severity() == Severity::Absent || error.reason() == Reason::Unknown => Ok(None),
        Err(error) => Err(error),
    }
}

/// A number of links that are there.
fn links(count: Result<u64>) -> Result<u32> {
    match count? {
        0 => Err(Error::new(FIELD_CALL, NvmlError::NotSupported)),
        count if count > MOST_LINKS => Err(Error::implausible(FIELD_CALL, format!("{count} links"))),
        count => Ok(count as u32),
    }
}

impl Device<'_> {
    /// The NVLinks, with their errors and their traffic as the driver adds them up.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a GPU without NVLinks; [`crate::faults::Reason::Implausible`] for numbers that cannot be true.
    pub fn nvlinks(&self) -> Result<Nvlinks> {
        let [count, replay, recovery, crc_flit, crc_data, ecc_data, recovery_events, transmitted, received] =
            raw::fields(
                self.nvml,
                self.handle,
                [
                    (id::NVML_FI_DEV_NVLINK_LINK_COUNT, 0),
                    (id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0),
                    (id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0),
                    (id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0),
                    (id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0),
                    (id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, 0),
                    (id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, ALL_LINKS),
                    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
                    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
                ],
            )?;
        let links = links(count)?;
        let recovery_events = known(recovery_events)?;
        let errors = [known(replay)?, known(recovery)?, known(crc_flit)?, known(crc_data)?, known(ecc_data)?];
        let [transmitted, received] = [known(transmitted)?, known(received)?];
        let bytes = |kib: Option<u64>| kib.and_then(|kib| kib.checked_mul(1024));
        Ok(Nvlinks { links, errors, recovery_events, transmitted: bytes(transmitted), received: bytes(received) })
    }

    /// How many of the NVLinks are not active.
    ///
    /// # Errors
    /// As [`Device::nvlinks`], and if the state of a link is not known.
    pub fn nvlinks_down(&self) -> Result<u32> {
        let mut down = 0;
        for link in 0..self.nvlink_count()? {
            let is_active = self.call(LINK_STATE, |device| device.link_wrapper_for(link).is_active())?;
            down += u32::from(!is_active);
        }
        Ok(down)
    }

    fn nvlink_count(&self) -> Result<u32> {
        links(raw::field(self.nvml, self.handle, id::NVML_FI_DEV_NVLINK_LINK_COUNT))
    }

    /// The errors of each NVLink: up to four calls for each. On an H200 (driver 580.159.04), the 72 calls for 18 links took 134 ms.
    ///
    /// # Errors
    /// As [`Device::nvlinks`].
    pub fn nvlink_errors(&self) -> Result<Vec<NvlinkErrors>> {
        let of_link = |link| {
            let mut errors = NvlinkErrors::default();
            for (error, counter) in errors.iter_mut().zip(OF_A_LINK) {
                let Some(counter) = counter else { continue };
                *error = known(self.call("nvmlDeviceGetNvLinkErrorCounter", |device| {
                    device.link_wrapper_for(link).error_counter(counter)
                }))?;
            }
            Ok(errors)
        };
        (0..self.nvlink_count()?).map(of_link).collect()
    }

    /// The links to the chip beside the GPU.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a GPU without such links; [`crate::faults::Reason::Implausible`] for numbers that cannot be true.
    pub fn c2c_links(&self) -> Result<C2cLinks> {
        let links = links(raw::field(self.nvml, self.handle, id::NVML_FI_DEV_C2C_LINK_COUNT))?;
        let mut down = 0;
        for link in 0..links {
            let [status] = raw::fields(self.nvml, self.handle, [(id::NVML_FI_DEV_C2C_LINK_GET_STATUS, link)])?;
            match status? {
                0 => down += 1,
                1 => {}
                status => return Err(Error::implausible(FIELD_CALL, format!("C2C status {status}"))),
            }
        }
        Ok(C2cLinks { links, down })
    }

    /// The GPU's part of its fabric of NVSwitches.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for a GPU that is in no fabric; [`crate::faults::Reason::Implausible`] for a state that is not known.
    pub fn fabric(&self) -> Result<Fabric> {
        const CALL: &str = "nvmlDeviceGetGpuFabricInfoV";
        let read = raw::fabric(self.nvml, self.handle)?;
        let state = match (read.state, read.status) {
            (0, _) => return Err(Error::new(CALL, NvmlError::NotSupported)),
            (1, _) => FabricState::NotStarted,
            (2, _) => FabricState::InProgress,
            (3, 0) => FabricState::Completed,
            (3, _) => FabricState::Failed,
            (state, _) => return Err(Error::implausible(CALL, format!("fabric state {state}"))),
        };
        Ok(Fabric {
            cluster: uuid(read.cluster),
            clique: read.clique,
            state,
            health_mask: read.health,
            health_summary: Some(u32::from(read.summary)).filter(|&summary| summary > 0),
        })
    }
}

/// The text of a UUID.
fn uuid(bytes: [u8; 16]) -> String {
    let digits = bytes.map(|byte| format!("{byte:02x}")).concat();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_usual_form() {
        assert_eq!(uuid(std::array::from_fn(|at| at as u8 * 17)), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
