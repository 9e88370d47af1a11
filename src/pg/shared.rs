//! Areas of shared memory.
//!
//! An area has a header of atomics and a table of items. Each item has a lock of its own, or
//! consists of atomics too. The areas exist only when `shared_preload_libraries` loads fetchq.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use pgrx::pg_sys;

/// The content of an area.
pub trait Content: 'static {
    /// The name of the area, and of the tranche of its locks.
    const NAME: &CStr;
    /// The header. All processes use it without a lock, so it has atomics only.
    type Header: Sync + 'static;
    /// An item, which processes use under its lock.
    type Item: 'static;
    /// Whether each item has a lock. Items without one consist of atomics, see [`Area::slots`].
    const HAS_LOCKS: bool = true;
    /// Makes the first value of the header.
    fn header() -> Self::Header;
    /// Makes the first value of an item.
    fn item() -> Self::Item;
    /// Returns the number of items. It is read only when the server starts.
    fn items() -> usize;
    /// Returns the address of the area, which is a static of the content.
    fn place() -> &'static Place;
}

/// The address of an area in this process.
pub struct Place {
    locks: AtomicPtr<pg_sys::LWLockPadded>,
    memory: AtomicPtr<u8>,
    items: AtomicUsize,
}

impl Place {
    /// Makes the address of an area that does not exist yet.
    pub const fn unknown() -> Self {
        Self {
            locks: AtomicPtr::new(std::ptr::null_mut()),
            memory: AtomicPtr::new(std::ptr::null_mut()),
            items: AtomicUsize::new(0),
        }
    }
}

type Hook = Option<unsafe extern "C-unwind" fn()>;

/// The functions of an installed area that the hooks of the server call.
struct Installed {
    #[cfg(not(any(feature = "pg13", feature = "pg14")))]
    request: fn(),
    startup: fn(),
}

static INSTALLED: Mutex<Vec<Installed>> = Mutex::new(Vec::new());
#[cfg(not(any(feature = "pg13", feature = "pg14")))]
static PREVIOUS_REQUEST: OnceLock<Hook> = OnceLock::new();
static PREVIOUS_STARTUP: OnceLock<Hook> = OnceLock::new();

unsafe extern "C-unwind" {
    // These bindings have no guard of pgrx, which costs more than the lock. Neither function
    // raises an ERROR in a process that holds a single lock.
    fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    fn LWLockRelease(lock: *mut pg_sys::LWLock);
}

/// Calls `step` for every installed area, in the order of their installation.
fn for_each_installed(step: impl Fn(&Installed)) {
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    installed.iter().for_each(step);
}

#[cfg(not(any(feature = "pg13", feature = "pg14")))]
unsafe extern "C-unwind" fn on_request() {
    // SAFETY: This is the hook that was installed before.
    unsafe {
        if let Some(Some(previous)) = PREVIOUS_REQUEST.get() {
            previous();
        }
    }
    for_each_installed(|area| (area.request)());
}

unsafe extern "C-unwind" fn on_startup() {
    // SAFETY: This is the hook that was installed before.
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

    /// Requests the memory of the area.
    ///
    /// Must be called once for each content, from `_PG_init`, while libraries are preloaded.
    pub fn install() {
        let is_first = {
            let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
            installed.push(Installed {
                #[cfg(not(any(feature = "pg13", feature = "pg14")))]
                request: Self::request,
                startup: Self::startup,
            });
            installed.len() == 1
        };
        #[cfg(any(feature = "pg13", feature = "pg14"))]
        Self::request();
        if is_first {
            // SAFETY: The postmaster calls the hooks before any backend starts, and again after
            // a crash of a backend. Hooks that were installed before are called too.
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

    fn has_locks() -> bool {
        C::HAS_LOCKS && C::items() > 0
    }

    fn request() {
        // SAFETY: This is called in the phase in which requests are allowed.
        unsafe {
            pg_sys::RequestAddinShmemSpace(Self::size());
            if Self::has_locks() {
                pg_sys::RequestNamedLWLockTranche(C::NAME.as_ptr(), C::items() as i32);
            }
        }
    }

    fn startup() {
        // SAFETY: The memory has the requested size and is aligned for every type. It is
        // written before other processes exist, because they are forked from this one.
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
            if Self::has_locks() {
                let locks = pg_sys::GetNamedLWLockTranche(C::NAME.as_ptr());
                place.locks.store(locks, Ordering::Relaxed);
            }
            place.memory.store(memory, Ordering::Release);
        }
    }

    /// Returns the number of items. 0 when the area does not exist.
    pub fn items() -> usize {
        C::place().items.load(Ordering::Relaxed)
    }

    /// Returns the header. None when the area does not exist.
    pub fn header() -> Option<&'static C::Header> {
        let memory = C::place().memory.load(Ordering::Acquire);
        // SAFETY: `startup` has written the header. It lives as long as the server, and its
        // fields are atomics.
        (!memory.is_null()).then(|| unsafe { &*(memory as *const C::Header) })
    }

    /// Returns the items of an area whose items have no locks. There are none when the area does
    /// not exist.
    pub fn slots() -> &'static [C::Item]
    where
        C::Item: Sync,
    {
        let memory = C::place().memory.load(Ordering::Acquire);
        if memory.is_null() || C::HAS_LOCKS {
            return &[];
        }
        // SAFETY: `startup` has written the items, which live as long as the server. They are
        // `Sync`, and without locks nothing makes a mutable reference to one.
        unsafe {
            let items = memory.add(Self::HEADER) as *const C::Item;
            std::slice::from_raw_parts(items, Self::items())
        }
    }

    fn item(at: usize) -> (*mut C::Item, *mut pg_sys::LWLock) {
        assert!(
            C::HAS_LOCKS && at < Self::items(),
            "item of the shared memory"
        );
        let place = C::place();
        // SAFETY: `at` is less than the number of items, and each item has a lock.
        unsafe {
            let items = place.memory.load(Ordering::Acquire).add(Self::HEADER) as *mut C::Item;
            let lock = &raw mut (*place.locks.load(Ordering::Acquire).add(at)).lock;
            (items.add(at), lock)
        }
    }

    /// Reads an item under its shared lock.
    ///
    /// `read` must not call the server, because after an ERROR the lock would be held until the
    /// transaction ends.
    pub fn read<R>(at: usize, read: impl FnOnce(&C::Item) -> R) -> R {
        let (item, lock) = Self::item(at);
        // SAFETY: The shared lock is held, so no process writes the item.
        unsafe {
            LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
            let result = read(&*item);
            LWLockRelease(lock);
            result
        }
    }

    /// Changes an item under its exclusive lock.
    ///
    /// `write` must not call the server, because after an ERROR the lock would be held until the
    /// transaction ends.
    pub fn write<R>(at: usize, write: impl FnOnce(&mut C::Item) -> R) -> R {
        let (item, lock) = Self::item(at);
        // SAFETY: The exclusive lock is held, so no other process uses the item.
        unsafe {
            LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
            let result = write(&mut *item);
            LWLockRelease(lock);
            result
        }
    }
}
