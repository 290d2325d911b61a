//! A driver without a GPU: it exports calls of `libcuda.so` with NVIDIA's names, arguments and results, and holds no memory. [`Driver`]
//! calls such a library from safe Rust.
//!
//! Invariant: a call touches no memory but what its pointers lead to, and its result follows from its arguments and from what the
//! driver grants.
//!
//! The library in the folder `deps` of the build, `libfake_libcuda.so`, belongs under the name `libcuda.so.1` into a folder of the test:
//! a copy has an inode of its own, so that the probes of one test do not see the calls of another.

#![allow(unsafe_code, reason = "exports C functions, and calls them")]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use libloading::{Library, Symbol};

/// The largest request that is granted at first. A larger one is refused.
pub const CAPACITY: u64 = 80 << 30;
/// A request of this size ends the thread inside the call.
pub const ENDS_THREAD: u64 = 0xdead;
/// A request of this size ends the process inside the call.
pub const ENDS_PROCESS: u64 = 0xdeadbeef;
/// A request of this size waits inside the call until the process is killed.
pub const WAITS: u64 = 0xfeed;
/// To free this address waits inside the call until the process is killed.
pub const NEVER_FREED: u64 = 0xfee;
/// The first address. The others follow, so that an address below it is unknown.
pub const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
/// The context of device 0. That of another device is so much higher.
pub const FIRST_CONTEXT: u64 = 0xc0_0000;
/// The bytes between the rows of an allocation with a pitch.
pub const PITCH: u64 = 512;

/// `CUDA_SUCCESS`
pub const SUCCESS: c_int = 0;
/// `CUDA_ERROR_INVALID_VALUE`
pub const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub const OUT_OF_MEMORY: c_int = 2;

mod driver {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// The largest request that is granted.
    pub(super) static GRANTED: AtomicU64 = AtomicU64::new(CAPACITY);

    /// What a request of this size returns, and the address or handle that it makes.
    pub(super) fn request(size: u64) -> (c_int, u64) {
        match size {
            0 => (INVALID_VALUE, 0),
            ENDS_THREAD => {
                // SAFETY: ends this thread without running its destructors, as a thread that is killed would. What they would have
                // freed leaks; the tests that ask for it hold no lock here.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
                (INVALID_VALUE, 0)
            }
            // SAFETY: ends the process.
            ENDS_PROCESS => unsafe { libc::_exit(0) },
            WAITS => loop {
                std::thread::park();
            },
            size if size > GRANTED.load(Ordering::Relaxed) => (OUT_OF_MEMORY, 0),
            size => (SUCCESS, FIRST_ADDRESS.wrapping_add(size)),
        }
    }

    /// # Safety
    /// `to` must be null or point to a number that may be written.
    pub(super) unsafe fn answer(to: *mut u64, answer: (c_int, u64)) -> c_int {
        let (result, value) = answer;
        if to.is_null() {
            return INVALID_VALUE;
        }
        if result == SUCCESS {
            // SAFETY: not null, and the caller's promise.
            unsafe { *to = value };
        }
        result
    }
}

/// Defines the C functions. Each call returns what the expression says, through the pointer `to` if it has one. A function's number is
/// in its code, so that a linker does not fold functions with the same body into one.
macro_rules! calls {
    ($($number:literal $name:ident($($argument:ident: $type:ty),*) $(-> $to:ident)? = $answer:expr;)*) => {$(
        /// The call of this name in `cuda.h`.
        ///
        /// # Safety
        /// A pointer must be null or point to what `cuda.h` says.
        #[unsafe(no_mangle)]
        #[allow(unused_variables)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            std::hint::black_box($number);
            let answer: (c_int, u64) = $answer;
            // SAFETY: the caller's promise.
            $(return unsafe { driver::answer($to, answer) };)?
            #[allow(unreachable_code)]
            answer.0
        }
    )*};
}

fn context(device: c_int) -> (c_int, u64) {
    (SUCCESS, FIRST_CONTEXT + u64::from(device.cast_unsigned()))
}

fn known(address: u64) -> (c_int, u64) {
    if address == NEVER_FREED {
        loop {
            std::thread::park();
        }
    }
    (if address == 0 || address >= FIRST_ADDRESS { SUCCESS } else { INVALID_VALUE }, 0)
}

calls! {
    1 cuMemAlloc_v2(to: *mut u64, size: u64) -> to = driver::request(size);
    2 cuMemAllocPitch_v2(to: *mut u64, pitch: *mut u64, width: u64, height: u64, element: c_uint) -> to = {
        // SAFETY: the caller's promise.
        let told = unsafe { driver::answer(pitch, (SUCCESS, PITCH)) };
        if told == SUCCESS { driver::request(height.saturating_mul(PITCH)) } else { (told, 0) }
    };
    3 cuMemAllocManaged(to: *mut u64, size: u64, flags: c_uint) -> to = driver::request(size);
    4 cuMemAllocAsync(to: *mut u64, size: u64, stream: u64) -> to = driver::request(size);
    5 cuMemAllocAsync_ptsz(to: *mut u64, size: u64, stream: u64) -> to = driver::request(size);
    6 cuMemAllocFromPoolAsync(to: *mut u64, size: u64, pool: u64, stream: u64) -> to = driver::request(size);
    7 cuMemCreate(to: *mut u64, size: u64, properties: *const c_void, flags: c_ulonglong) -> to = driver::request(size);
    8 cuArrayCreate_v2(to: *mut u64, shape: *const c_void) -> to = driver::request(1);
    9 cuArray3DCreate_v2(to: *mut u64, shape: *const c_void) -> to = driver::request(2);
    10 cuMemFree_v2(address: u64) = known(address);
    11 cuMemFreeAsync(address: u64, stream: u64) = known(address);
    12 cuMemRelease(handle: u64) = known(handle);
    13 cuArrayDestroy(array: u64) = known(array);
    14 cuMemMap(address: u64, size: u64, offset: u64, handle: u64, flags: c_ulonglong) = known(handle);
    15 cuMemUnmap(address: u64, size: u64) = known(address);
    16 cuMemPoolTrimTo(pool: u64, keep: u64) = (SUCCESS, 0);
    17 cuCtxSetCurrent(context: u64) = (SUCCESS, 0);
    18 cuCtxPushCurrent_v2(context: u64) = (SUCCESS, 0);
    19 cuCtxPopCurrent_v2(to: *mut u64) -> to = context(0);
    20 cuDevicePrimaryCtxRetain(to: *mut u64, device: c_int) -> to = context(device);
    21 cuCtxCreate_v2(to: *mut u64, flags: c_uint, device: c_int) -> to = context(device);
    22 cuCtxCreate_v3(to: *mut u64, affinity: *const c_void, count: c_int, flags: c_uint, device: c_int) -> to = context(device);
    23 cuCtxCreate_v4(to: *mut u64, parameters: *const c_void, flags: c_uint, device: c_int) -> to = context(device);
    24 cuStreamCreate(to: *mut u64, flags: c_uint) -> to = driver::request(3);
    25 cuStreamCreateWithPriority(to: *mut u64, flags: c_uint, priority: c_int) -> to = driver::request(4);
    26 cuStreamDestroy_v2(stream: u64) = known(stream);
    27 cuIpcOpenMemHandle_v2(to: *mut u64, handle: IpcHandle, flags: c_uint) -> to = driver::request(5);
    30 cuCtxDestroy_v2(context: u64) = (SUCCESS, 0);
    31 cuDevicePrimaryCtxRelease_v2(device: c_int) = (SUCCESS, 0);
    32 cuDevicePrimaryCtxReset_v2(device: c_int) = (SUCCESS, 0);
    // Not a call of the driver: changes what it grants.
    29 fakeSetCapacity(bytes: u64) = {
        driver::GRANTED.store(bytes, std::sync::atomic::Ordering::Relaxed);
        (SUCCESS, 0)
    };
    28 cuMemImportFromShareableHandle(to: *mut u64, handle: *mut c_void, kind: c_int) -> to = driver::request(6);
}

/// `CUipcMemHandle`, which is passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct IpcHandle([u8; 64]);

/// The result of a call that returns something: the `CUresult` and what it wrote, which is 0 if it wrote nothing.
pub type Answer = (c_int, u64);

/// A library that was loaded by its path, and its calls. A driver is shared between threads.
#[derive(Debug)]
pub struct Driver(Library);

impl Driver {
    /// Loads the library at this path, a copy of the one that this package builds.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn load(path: &Path) -> Self {
        // SAFETY: this package's library runs no code when it is loaded.
        Self(unsafe { Library::new(path) }.expect("the library loads"))
    }

    /// Where in the file the code of a function is.
    ///
    /// # Panics
    /// If the library does not export it.
    pub fn offset(&self, name: &str) -> u64 {
        let address = (*self.function::<*const c_void>(name)).addr() as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs is mounted");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let found = maps.lines().find_map(|line| {
            // `begin-end rights offset …`
            let mut fields = line.split(' ');
            let (begin, end) = fields.next()?.split_once('-')?;
            let inside = (number(begin)..number(end)).contains(&address);
            inside.then(|| address - number(begin) + number(fields.nth(1).expect("an offset")))
        });
        found.expect("the code is mapped")
    }

    fn function<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: every caller gives the type of the function of this name in this file.
        unsafe { self.0.get(name.as_bytes()) }.expect(name)
    }
}

/// Defines methods of [`Driver`] with the names and arguments of the C functions, except the pointers to results.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $to:ident)?;)*) => {
        impl Driver {$(
            methods! { @method $name($($argument: $type),*) $(-> $to)? }
        )*}
    };
    (@method $name:ident($($argument:ident: $type:ty),*) -> $to:ident) => {
        /// Calls the function of this name.
        pub fn $name(&self, $($argument: $type),*) -> Answer {
            let mut $to = 0;
            // SAFETY: the type of the function in this file; the pointer leads to a number that lives through the call.
            let result = unsafe {
                self.function::<unsafe extern "C" fn(*mut u64, $($type),*) -> c_int>(stringify!($name))(&raw mut $to, $($argument),*)
            };
            (result, $to)
        }
    };
    (@method $name:ident($($argument:ident: $type:ty),*)) => {
        /// Calls the function of this name.
        pub fn $name(&self, $($argument: $type),*) -> c_int {
            // SAFETY: the type of the function in this file, which takes no pointer.
            unsafe { self.function::<unsafe extern "C" fn($($type),*) -> c_int>(stringify!($name))($($argument),*) }
        }
    };
}

methods! {
    cuMemAlloc_v2(size: u64) -> to;
    cuMemAllocManaged(size: u64, flags: c_uint) -> to;
    cuMemAllocAsync(size: u64, stream: u64) -> to;
    cuMemAllocAsync_ptsz(size: u64, stream: u64) -> to;
    cuMemAllocFromPoolAsync(size: u64, pool: u64, stream: u64) -> to;
    cuMemFree_v2(address: u64);
    cuMemFreeAsync(address: u64, stream: u64);
    cuMemRelease(handle: u64);
    cuArrayDestroy(array: u64);
    cuMemMap(address: u64, size: u64, offset: u64, handle: u64, flags: c_ulonglong);
    cuMemUnmap(address: u64, size: u64);
    cuMemPoolTrimTo(pool: u64, keep: u64);
    cuCtxSetCurrent(context: u64);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2() -> to;
    cuDevicePrimaryCtxRetain(device: c_int) -> to;
    cuCtxCreate_v2(flags: c_uint, device: c_int) -> to;
    cuCtxDestroy_v2(context: u64);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuStreamCreate(flags: c_uint) -> to;
    cuStreamCreateWithPriority(flags: c_uint, priority: c_int) -> to;
    cuStreamDestroy_v2(stream: u64);
}

impl Driver {
    /// Changes the largest request that is granted.
    pub fn set_capacity(&self, bytes: u64) {
        // SAFETY: the type of the function.
        unsafe { self.function::<unsafe extern "C" fn(u64) -> c_int>("fakeSetCapacity")(bytes) };
    }

    /// `cuMemAllocPitch_v2`: the result, the address and the pitch.
    pub fn cuMemAllocPitch_v2(&self, width: u64, height: u64) -> (c_int, u64, u64) {
        type Function = unsafe extern "C" fn(*mut u64, *mut u64, u64, u64, c_uint) -> c_int;
        let (mut address, mut pitch) = (0, 0);
        let call = self.function::<Function>("cuMemAllocPitch_v2");
        // SAFETY: the type of the function; both pointers lead to numbers that live through the call.
        let result = unsafe { call(&raw mut address, &raw mut pitch, width, height, 4) };
        (result, address, pitch)
    }

    /// `cuMemAlloc_v2` with a null pointer, which is an error.
    pub fn allocate_nowhere(&self, size: u64) -> c_int {
        let call = self.function::<unsafe extern "C" fn(*mut u64, u64) -> c_int>("cuMemAlloc_v2");
        // SAFETY: the type of the function, which does not write to a null pointer.
        unsafe { call(std::ptr::null_mut(), size) }
    }

    /// `cuMemCreate` with the properties of memory at a location of this type, of which 1 is a device, and with this ordinal.
    pub fn cuMemCreate(&self, size: u64, location: c_uint, device: c_int) -> Answer {
        type Function = unsafe extern "C" fn(*mut u64, u64, *const c_void, c_ulonglong) -> c_int;
        // Type and handle types, location, metadata, flags.
        let properties = [[1, 0], [location, device.cast_unsigned()], [0, 0], [0, 0]];
        let mut handle = 0;
        let call = self.function::<Function>("cuMemCreate");
        // SAFETY: the type of the function; both pointers lead to what they should.
        (unsafe { call(&raw mut handle, size, (&raw const properties).cast(), 0) }, handle)
    }

    /// `cuArrayCreate_v2` of floats with this many channels.
    pub fn cuArrayCreate_v2(&self, width: u64, height: u64, channels: u64) -> Answer {
        self.array("cuArrayCreate_v2", &[width, height, FLOAT | channels << 32])
    }

    /// `cuArray3DCreate_v2` of floats with this many channels.
    pub fn cuArray3DCreate_v2(&self, sides: [u64; 3], channels: u64) -> Answer {
        self.array("cuArray3DCreate_v2", &[sides[0], sides[1], sides[2], FLOAT | channels << 32, 0])
    }

    fn array(&self, name: &str, shape: &[u64]) -> Answer {
        let mut array = 0;
        let call = self.function::<unsafe extern "C" fn(*mut u64, *const c_void) -> c_int>(name);
        // SAFETY: the type of both functions; the pointers lead to a number and to a description of the length that the name needs.
        (unsafe { call(&raw mut array, shape.as_ptr().cast()) }, array)
    }

    /// `cuCtxCreate_v3` and `cuCtxCreate_v4` without parameters.
    pub fn create_contexts(&self, device: c_int) -> [Answer; 2] {
        type V3 = unsafe extern "C" fn(*mut u64, *const c_void, c_int, c_uint, c_int) -> c_int;
        type V4 = unsafe extern "C" fn(*mut u64, *const c_void, c_uint, c_int) -> c_int;
        let (mut third, mut fourth) = (0, 0);
        let (v3, v4) = (self.function::<V3>("cuCtxCreate_v3"), self.function::<V4>("cuCtxCreate_v4"));
        // SAFETY: the types of the functions, which do not read the parameters.
        let results = unsafe {
            (v3(&raw mut third, std::ptr::null(), 0, 0, device), v4(&raw mut fourth, std::ptr::null(), 0, device))
        };
        [(results.0, third), (results.1, fourth)]
    }

    /// `cuIpcOpenMemHandle_v2` and `cuMemImportFromShareableHandle`.
    pub fn open_and_import(&self) -> [Answer; 2] {
        type Open = unsafe extern "C" fn(*mut u64, IpcHandle, c_uint) -> c_int;
        type Import = unsafe extern "C" fn(*mut u64, *mut c_void, c_int) -> c_int;
        let (mut address, mut handle) = (0, 0);
        let open = self.function::<Open>("cuIpcOpenMemHandle_v2");
        let import = self.function::<Import>("cuMemImportFromShareableHandle");
        // SAFETY: the types of the functions, which do not read the handles.
        let results = unsafe {
            (open(&raw mut address, IpcHandle([0; 64]), 1), import(&raw mut handle, std::ptr::null_mut(), 1))
        };
        [(results.0, address), (results.1, handle)]
    }
}

/// `CU_AD_FORMAT_FLOAT`
const FLOAT: u64 = 0x20;
