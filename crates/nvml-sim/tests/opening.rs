//! Opening, closing and configuring the library through bare C functions.

#![allow(unsafe_code, reason = "the test calls the C functions")]

mod rig;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use rig::Rig;

const SUCCESS: c_int = 0;
const UNINITIALIZED: c_int = 1;
const INVALID_ARGUMENT: c_int = 2;
const IN_USE: c_int = 19;
const UNKNOWN: c_int = 999;

type None0 = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type Configure = unsafe extern "C" fn(*const c_char, *const c_char, *const c_char) -> c_int;
type Name = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int;

struct Library(libloading::Library);

impl Library {
    fn open() -> Self {
        // SAFETY: this is the library that was built with this test.
        Self(unsafe { libloading::Library::new(rig::library()) }.unwrap())
    }

    fn plain(&self, name: &str) -> c_int {
        // SAFETY: `None0` is the symbol's type.
        unsafe { self.0.get::<None0>(name.as_bytes()).unwrap()() }
    }

    fn count(&self) -> (c_int, c_uint) {
        let mut count = 0;
        // SAFETY: `Count` is the symbol's type, and the pointer is valid.
        let code = unsafe { self.0.get::<Count>(b"nvmlDeviceGetCount_v2").unwrap()(&raw mut count) };
        (code, count)
    }

    fn configure(&self, scenario: Option<&CStr>) -> c_int {
        let null = std::ptr::null();
        // SAFETY: this is the symbol's type, and the arguments are C strings.
        unsafe {
            self.0.get::<Configure>(b"nvmlSimConfigure").unwrap()(scenario.map_or(null, CStr::as_ptr), null, null)
        }
    }
}

#[test]
fn the_library_is_open_as_often_as_it_was_opened() {
    Rig::alone("the_library_is_open_as_often_as_it_was_opened", "idle-h200", |_| {
        let library = Library::open();
        assert_eq!(library.count().0, UNINITIALIZED);
        assert_eq!(library.plain("nvmlShutdown"), UNINITIALIZED);
        assert_eq!(library.plain("nvmlInit_v2"), SUCCESS);
        assert_eq!(library.plain("nvmlInit_v2"), SUCCESS);
        assert_eq!(library.plain("nvmlShutdown"), SUCCESS);
        assert_eq!(library.count(), (SUCCESS, 1));
        assert_eq!(library.plain("nvmlShutdown"), SUCCESS);
        assert_eq!(library.count().0, UNINITIALIZED);
        assert_eq!(library.plain("nvmlInit_v2"), SUCCESS);
        assert_eq!(library.count(), (SUCCESS, 1));
    });
}

#[test]
fn what_a_program_tells_wins_over_the_environment() {
    Rig::alone("what_a_program_tells_wins_over_the_environment", "idle-h200", |_| {
        let library = Library::open();
        assert_eq!(library.configure(Some(c"mixed")), SUCCESS);
        assert_eq!(library.configure(None), SUCCESS);
        assert_eq!(library.plain("nvmlInit_v2"), SUCCESS);
        assert_eq!(library.count(), (SUCCESS, 4));
        assert_eq!(library.configure(Some(c"demo")), IN_USE);
        // A second session beside the first one: the program configures the library again.
        assert_eq!((library.configure(Some(c"mixed")), library.plain("nvmlInit_v2")), (SUCCESS, SUCCESS));
        assert_eq!(library.plain("nvmlShutdown"), SUCCESS);
        assert_eq!(library.plain("nvmlShutdown"), SUCCESS);
        assert_eq!(library.configure(Some(c"")), INVALID_ARGUMENT);
        assert_eq!(library.configure(Some(c"no-such-scenario")), SUCCESS);
        assert_eq!(library.plain("nvmlInit_v2"), UNKNOWN);
        assert_eq!(library.configure(Some(c"eight-h200")), SUCCESS);
        assert_eq!(library.plain("nvmlInit_v2"), SUCCESS);
        assert_eq!(library.count(), (SUCCESS, 8));
        // SAFETY: this is the symbol's type, and the text that it returns is static.
        let version = unsafe {
            let version = library.0.get::<unsafe extern "C" fn() -> *const c_char>(b"nvmlSimVersion").unwrap();
            CStr::from_ptr(version())
        };
        assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    });
}

#[test]
fn a_handle_that_was_never_given_is_refused() {
    Rig::alone("a_handle_that_was_never_given_is_refused", "idle-h200", |_| {
        let library = Library::open();
        assert_eq!(library.plain("nvmlInit_v2"), SUCCESS);
        // SAFETY: `Name` is the symbol's type.
        let name = unsafe { library.0.get::<Name>(b"nvmlDeviceGetName").unwrap() };
        let mut room: [c_char; 96] = [0; 96];
        for word in [0, 1, 0x6E76_0100, 0x6E76_0010, 0x6E76_0001, usize::MAX] {
            let handle = std::ptr::without_provenance_mut(word);
            // SAFETY: the library looks a handle up and never dereferences it.
            assert_eq!(unsafe { name(handle, room.as_mut_ptr(), 96) }, INVALID_ARGUMENT, "{word:#x}");
        }
    });
}
