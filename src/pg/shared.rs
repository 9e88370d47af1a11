//! Areas of shared memory, each with a header of atomics and a table of items, each item
//! under a lock of its own. They exist only when `shared_preload_libraries` loads fetchq.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use pgrx::pg_sys;

/// What an area holds.
pub trait Content: 'static {
    /// The name of the area and of the tranche of its locks.
    const NAME: &CStr;
    /// Shared by all processes without a lock: atomics only.
    type Header: Sync + 'static;
    type Item: 'static;
    fn header() -> Self::Header;
    fn item() -> Self::Item;
    /// The number of items, which is asked for once, when the server starts.
    fn items() -> usize;
    /// Where this process finds the area: a static of the content.
    fn place() -> &'static Place;
}

/// Where a process finds an area.
pub struct Place {
    locks: AtomicPtr<pg_sys::LWLockPadded>,
    memory: AtomicPtr<u8>,
    items: AtomicUsize,
}

impl Place {
    pub const fn unknown() -> Self {
        Self {
            locks: AtomicPtr::new(std::ptr::null_mut()),
            memory: AtomicPtr::new(std::ptr::null_mut()),
            items: AtomicUsize::new(0),
        }
    }
}

type Hook = Option<unsafe extern "C-unwind" fn()>;

/// What the hooks of the server call for each installed area.
struct Installed {
    request: fn(),
    startup: fn(),
}

static INSTALLED: Mutex<Vec<Installed>> = Mutex::new(Vec::new());
#[cfg(not(any(feature = "pg13", feature = "pg14")))]
static PREVIOUS_REQUEST: OnceLock<Hook> = OnceLock::new();
static PREVIOUS_STARTUP: OnceLock<Hook> = OnceLock::new();

unsafe extern "C-unwind" {
    // BoundSessions without pgrx's guard, which costs more than the lock: neither advances an
    // ERROR for a process that holds a single lock.
    fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    fn LWLockRelease(lock: *mut pg_sys::LWLock);
}

/// Runs a step of every installed area, in the order of their installation.
fn for_each_installed(step: impl Fn(&Installed)) {
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    installed.iter().for_each(step);
}

#[cfg(not(any(feature = "pg13", feature = "pg14")))]
unsafe extern "C-unwind" fn on_request() {
    // SAFETY: the hook that was there before ours.
    unsafe {
        if let Some(Some(previous)) = PREVIOUS_REQUEST.get() {
            previous();
        }
    }
    for_each_installed(|area| (area.request)());
}

unsafe extern "C-unwind" fn on_startup() {
    // SAFETY: the hook that was there before ours.
    unsafe {
        if let Some(Some(previous)) = PREVIOUS_STARTUP.get() {
            previous();
        }
    }
    for_each_installed(|area| (area.startup)());
}

/// An area of shared memory.
pub struct Area<C: Content>(PhantomData<C>);

impl<C: Content> Area<C> {
    const HEADER: usize = size_of::<C::Header>().next_multiple_of(128);

    fn size() -> usize {
        Self::HEADER + C::items() * size_of::<C::Item>()
    }

    /// Asks for the memory. Called once for each content, from _PG_init, while libraries
    /// are preloaded.
    pub fn install() {
        let is_first = {
            let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
            installed.push(Installed {
                request: Self::request,
                startup: Self::startup,
            });
            installed.len() == 1
        };
        #[cfg(any(feature = "pg13", feature = "pg14"))]
        Self::request();
        if is_first {
            // SAFETY: the hooks are called by the postmaster (and, after a crash of a
            // backend, once more) before any backend starts; previous ones are kept.
            unsafe {
                #[cfg(not(any(feature = "pg13", feature = "pg14")))]
                {
                    let _ = PREVIOUS_REQUEST.set(pg_sys::shmem_request_hook);
                    pg_sys::shmem_request_hook = Some(on_request);
                }
                let _ = PREVIOUS_STARTUP.set(pg_sys::shmem_startup_hook);
                pg_sys::shmem_startup_hook = Some(on_startup);
            }
        }
    }

    fn request() {
        // SAFETY: called in the phase in which requests are allowed.
        unsafe {
            pg_sys::RequestAddinShmemSpace(Self::size());
            if C::items() > 0 {
                pg_sys::RequestNamedLWLockTranche(C::NAME.as_ptr(), C::items() as i32);
            }
        }
    }

    fn startup() {
        // SAFETY: memory of the size asked for, aligned for any type; it is written
        // before other processes exist (they are forked from this one).
        unsafe {
            let mut found = false;
            let memory =
                pg_sys::ShmemInitStruct(C::NAME.as_ptr(), Self::size(), &mut found) as *mut u8;
            if !found {
                (memory as *mut C::Header).write(C::header());
                let items = memory.add(Self::HEADER) as *mut C::Item;
                for at in 0..C::items() {
                    items.add(at).write(C::item());
                }
            }
            let place = C::place();
            place.items.store(C::items(), Ordering::Relaxed);
            if C::items() > 0 {
                let locks = pg_sys::GetNamedLWLockTranche(C::NAME.as_ptr());
                place.locks.store(locks, Ordering::Relaxed);
            }
            place.memory.store(memory, Ordering::Release);
        }
    }

    /// The number of items; 0 without shared memory.
    pub fn items() -> usize {
        C::place().items.load(Ordering::Relaxed)
    }

    /// The header; None without shared memory.
    pub fn header() -> Option<&'static C::Header> {
        let memory = C::place().memory.load(Ordering::Acquire);
        // SAFETY: written by `startup`; it lives as long as the server, and is only read
        // through atomics.
        (!memory.is_null()).then(|| unsafe { &*(memory as *const C::Header) })
    }

    fn item(at: usize) -> (*mut C::Item, *mut pg_sys::LWLock) {
        assert!(at < Self::items(), "item of the shared memory");
        let place = C::place();
        // SAFETY: there are that many items and locks.
        unsafe {
            let items = place.memory.load(Ordering::Acquire).add(Self::HEADER) as *mut C::Item;
            let lock = &raw mut (*place.locks.load(Ordering::Acquire).add(at)).lock;
            (items.add(at), lock)
        }
    }

    /// Reads an item under its lock, together with others that read. `read` must not
    /// call the server: an ERROR would leave the lock until the transaction ends.
    pub fn read<R>(at: usize, read: impl FnOnce(&C::Item) -> R) -> R {
        let (item, lock) = Self::item(at);
        // SAFETY: the lock is held, so nobody writes.
        unsafe {
            LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
            let result = read(&*item);
            LWLockRelease(lock);
            result
        }
    }

    /// Changes an item under its lock; `write` as in `read`.
    pub fn write<R>(at: usize, write: impl FnOnce(&mut C::Item) -> R) -> R {
        let (item, lock) = Self::item(at);
        // SAFETY: the lock is held alone.
        unsafe {
            LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
            let result = write(&mut *item);
            LWLockRelease(lock);
            result
        }
    }
}
