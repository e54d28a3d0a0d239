//! Why libibverbs shows no device: read off sysfs and the device files.

use std::{fs, io, path::Path};

use super::DeviceError;

/// Where the kernel lists RDMA devices.
pub const SYSFS: &str = "/sys/class/infiniband";
/// Where the device files are that user space opens.
pub const DEVICE_FILES: &str = "/dev/infiniband";

/// The reason why a list of devices came back empty.
pub fn explain(sysfs: &Path, device_files: &Path) -> DeviceError {
    let sysfs_text = sysfs.display().to_string();
    let Ok(entries) = fs::read_dir(sysfs) else {
        return DeviceError::NoKernelSupport { sysfs: sysfs_text };
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let Some(device) = names.into_iter().next() else {
        return DeviceError::NoDevice { sysfs: sysfs_text };
    };
    let folder = device_files.display().to_string();
    match first_device_file(device_files) {
        Ok(Some(_)) => DeviceError::NoDriver { device },
        Ok(None) => DeviceError::NoDeviceFile { device, folder },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            DeviceError::Permission { device, path: folder }
        }
        Err(_) => DeviceError::NoDeviceFile { device, folder },
    }
}

fn first_device_file(folder: &Path) -> io::Result<Option<String>> {
    let names = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.into_iter().find(|name| name.starts_with("uverbs")))
}

/// The reason why one listed device could not be opened.
pub fn explain_open(device: &str, file: &str, error: io::Error) -> DeviceError {
    let device = device.to_string();
    let path = format!("{DEVICE_FILES}/{file}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => DeviceError::Permission { device, path },
        // libibverbs looks elsewhere for a file that it may not open, and says that none is there.
        io::ErrorKind::NotFound if is_forbidden(Path::new(&path)) => {
            DeviceError::Permission { device, path }
        }
        io::ErrorKind::NotFound => {
            DeviceError::NoDeviceFile { device, folder: DEVICE_FILES.to_string() }
        }
        _ => DeviceError::Query { device, call: "ibv_open_device", source: error },
    }
}

/// Whether the file is there, and not for us.
fn is_forbidden(path: &Path) -> bool {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder that stands for /sys and /dev, removed with the value.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("kestrel-absence-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn folder(self, path: &str) -> Self {
            fs::create_dir_all(self.0.join(path)).unwrap();
            self
        }

        fn explain(&self) -> DeviceError {
            explain(&self.0.join("sys"), &self.0.join("dev"))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_kernel_without_rdma_is_named() {
        let error = Machine::new("kernel").explain();
        assert!(matches!(error, DeviceError::NoKernelSupport { .. }), "{error}");
    }

    #[test]
    fn a_machine_without_a_device_is_named() {
        let error = Machine::new("device").folder("sys").explain();
        assert!(matches!(error, DeviceError::NoDevice { .. }), "{error}");
    }

    #[test]
    fn a_device_without_its_file_is_named() {
        let error = Machine::new("file").folder("sys/rxe0").explain();
        assert!(matches!(&error, DeviceError::NoDeviceFile { device, .. } if device == "rxe0"));
        let error = Machine::new("rdma_cm").folder("sys/rxe0").folder("dev/rdma_cm").explain();
        assert!(matches!(error, DeviceError::NoDeviceFile { .. }), "{error}");
    }

    #[test]
    fn a_device_that_no_driver_claims_is_named() {
        let error = Machine::new("driver").folder("sys/rxe0").folder("dev/uverbs0").explain();
        assert!(matches!(&error, DeviceError::NoDriver { device } if device == "rxe0"), "{error}");
    }

    #[test]
    fn a_refused_open_names_the_file() {
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let error = explain_open("rxe0", "uverbs0", refused);
        let text = error.to_string();
        assert!(text.contains("no permission to open /dev/infiniband/uverbs0"), "{text}");
        let gone = io::Error::from_raw_os_error(libc::ENODEV);
        let error = explain_open("rxe0", "uverbs0", gone);
        assert!(matches!(error, DeviceError::Query { call: "ibv_open_device", .. }), "{error}");
    }
}
