//! One area of shared memory: a header of atomics and a table of items, each under a
//! lock of its own. It exists only when `shared_preload_libraries` loads fetchq.

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pgrx::pg_sys;

/// What the area holds.
pub trait Content: 'static {
    /// Shared by all without a lock: atomics only.
    type Header: Sync + 'static;
    type Item: 'static;
    fn header() -> Self::Header;
    fn item() -> Self::Item;
    /// How many items there are; asked once, when the server starts.
    fn items() -> usize;
}

const NAME: &std::ffi::CStr = c"fetchq";

type Hook = Option<unsafe extern "C-unwind" fn()>;

static LOCKS: AtomicPtr<pg_sys::LWLockPadded> = AtomicPtr::new(std::ptr::null_mut());
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static ITEMS: AtomicUsize = AtomicUsize::new(0);
#[cfg(not(any(feature = "pg13", feature = "pg14")))]
static PREVIOUS_REQUEST: OnceLock<Hook> = OnceLock::new();
static PREVIOUS_STARTUP: OnceLock<Hook> = OnceLock::new();

unsafe extern "C-unwind" {
    // Bound without pgrx's guard, which costs more than the lock: neither raises an
    // ERROR for a process that holds a single lock.
    fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    fn LWLockRelease(lock: *mut pg_sys::LWLock);
}

/// The area. Only one content can be installed.
pub struct Area<C: Content>(PhantomData<C>);

impl<C: Content> Area<C> {
    const HEADER: usize = size_of::<C::Header>().next_multiple_of(128);

    fn size() -> usize {
        Self::HEADER + C::items() * size_of::<C::Item>()
    }

    /// Asks for the memory; called once, from _PG_init, while libraries are preloaded.
    pub fn install() {
        // SAFETY: the hooks are called by the postmaster (and, after a crash of a
        // backend, once more) before any backend starts; previous ones are kept.
        unsafe {
            #[cfg(any(feature = "pg13", feature = "pg14"))]
            Self::request();
            #[cfg(not(any(feature = "pg13", feature = "pg14")))]
            {
                let _ = PREVIOUS_REQUEST.set(pg_sys::shmem_request_hook);
                pg_sys::shmem_request_hook = Some(Self::on_request);
            }
            let _ = PREVIOUS_STARTUP.set(pg_sys::shmem_startup_hook);
            pg_sys::shmem_startup_hook = Some(Self::on_startup);
        }
    }

    #[cfg(not(any(feature = "pg13", feature = "pg14")))]
    unsafe extern "C-unwind" fn on_request() {
        // SAFETY: the hook that was there before ours.
        unsafe {
            if let Some(Some(previous)) = PREVIOUS_REQUEST.get() {
                previous();
            }
        }
        Self::request();
    }

    fn request() {
        // SAFETY: called in the phase in which requests are allowed.
        unsafe {
            pg_sys::RequestAddinShmemSpace(Self::size());
            pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), C::items() as i32);
        }
    }

    unsafe extern "C-unwind" fn on_startup() {
        // SAFETY: memory of the size asked for, aligned for any type; it is written
        // before other processes exist (they are forked from this one).
        unsafe {
            if let Some(Some(previous)) = PREVIOUS_STARTUP.get() {
                previous();
            }
            let mut found = false;
            let memory =
                pg_sys::ShmemInitStruct(NAME.as_ptr(), Self::size(), &mut found) as *mut u8;
            if !found {
                (memory as *mut C::Header).write(C::header());
                let items = memory.add(Self::HEADER) as *mut C::Item;
                for at in 0..C::items() {
                    items.add(at).write(C::item());
                }
            }
            ITEMS.store(C::items(), Ordering::Relaxed);
            LOCKS.store(
                pg_sys::GetNamedLWLockTranche(NAME.as_ptr()),
                Ordering::Relaxed,
            );
            MEMORY.store(memory, Ordering::Release);
        }
    }

    /// Items; 0 without shared memory.
    pub fn items() -> usize {
        ITEMS.load(Ordering::Relaxed)
    }

    pub fn header() -> Option<&'static C::Header> {
        let memory = MEMORY.load(Ordering::Acquire);
        // SAFETY: written by on_startup; lives as long as the server, and is only read
        // through atomics.
        (!memory.is_null()).then(|| unsafe { &*(memory as *const C::Header) })
    }

    fn item(at: usize) -> (*mut C::Item, *mut pg_sys::LWLock) {
        assert!(at < Self::items(), "item of the shared memory");
        // SAFETY: there are that many items and locks.
        unsafe {
            let items = MEMORY.load(Ordering::Acquire).add(Self::HEADER) as *mut C::Item;
            let lock = &raw mut (*LOCKS.load(Ordering::Acquire).add(at)).lock;
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
