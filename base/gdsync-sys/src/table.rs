//! [`dl_api!`](crate::dl_api): the declaration of a table of a library's functions.

/// Declares a table of functions of a shared library that is opened at run time.
///
/// ```
/// gdsync_sys::dl_api! {
///     /// A little of the C library's mathematics.
///     pub struct Maths("mathematics") {
///         sonames: ["libm.so.6"],
///         env: "EXAMPLE_MATHS_LIB",
///         required {
///             /// The cosine of an angle in radians.
///             fn cos(x: f64) -> f64;
///         }
///         optional {
///             /// Not every library has it.
///             fn cos_of_the_future(x: f64) -> f64;
///         }
///     }
/// }
///
/// let maths = Maths::get().expect("libm.so.6 is here");
/// // SAFETY: `cos` takes any number.
/// assert_eq!(unsafe { (maths.cos)(0.0) }, 1.0);
/// assert!(maths.cos_of_the_future.is_none());
/// ```
///
/// The struct has a public field for each function: a plain `unsafe extern "C" fn` for a required
/// one, an `Option` of it for an optional one. `load_from(paths)` fills a table from the first path
/// that opens, `load()` from the variable's path or the sonames. `get()` calls `load()` once for
/// the process and keeps the result. A table may be dropped; its library stays open, so copied
/// pointers stay valid.
///
/// A function of a library with versioned symbols has its version, a string, before `fn`:
/// `"IBVERBS_1.1" fn ibv_alloc_pd(..)`. Another version of the symbol is not accepted.
#[macro_export]
macro_rules! dl_api {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Table:ident($api:literal) {
            sonames: [$($soname:literal),+ $(,)?],
            env: $env:literal,
            required { $(
                $(#[$req_meta:meta])*
                $($req_version:literal)? fn $req:ident($($req_arg:ident: $req_ty:ty),* $(,)?) $(-> $req_ret:ty)?;
            )* }
            optional { $(
                $(#[$opt_meta:meta])*
                $($opt_version:literal)? fn $opt:ident($($opt_arg:ident: $opt_ty:ty),* $(,)?) $(-> $opt_ret:ty)?;
            )* }
        }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        $vis struct $Table {
            library: $crate::Library,
            $(
                $(#[$req_meta])*
                pub $req: unsafe extern "C" fn($($req_arg: $req_ty),*) $(-> $req_ret)?,
            )*
            $(
                $(#[$opt_meta])*
                pub $opt: ::std::option::Option<
                    unsafe extern "C" fn($($opt_arg: $opt_ty),*) $(-> $opt_ret)?
                >,
            )*
        }

        #[allow(dead_code)]
        impl $Table {
            /// The sonames that are tried, in order, if the variable is not set.
            pub const SONAMES: &'static [&'static str] = &[$($soname),+];

            /// The environment variable with the path of the library to open instead.
            pub const ENV: &'static str = $env;

            /// The exported names of all required functions.
            pub const REQUIRED: &'static [&'static str] = &[$(::std::stringify!($req)),*];

            /// The exported names of all optional functions.
            pub const OPTIONAL: &'static [&'static str] = &[$(::std::stringify!($opt)),*];

            /// The names of all functions with their types as declared: arguments, result.
            #[doc(hidden)]
            pub const SIGNATURES: &'static [(&'static str, &'static [&'static str], &'static str)] = &[
                $((
                    ::std::stringify!($req),
                    &[$(::std::stringify!($req_ty)),*],
                    ::std::stringify!($($req_ret)?),
                ),)*
                $((
                    ::std::stringify!($opt),
                    &[$(::std::stringify!($opt_ty)),*],
                    ::std::stringify!($($opt_ret)?),
                ),)*
            ];

            /// Fills a table from the first of `paths` that opens.
            ///
            /// # Errors
            /// [`LoadError`]($crate::LoadError): no path opened, or the library lacks a required
            /// function.
            ///
            /// # Safety
            /// Every library in `paths` must be sound to load (its initialisers run), and must
            /// export functions of the types in this table.
            pub unsafe fn load_from<P: ::std::convert::AsRef<::std::ffi::OsStr>>(
                paths: impl ::std::iter::IntoIterator<Item = P>,
            ) -> ::std::result::Result<Self, $crate::LoadError> {
                let api: &'static str = $api;
                // SAFETY: the caller vouches for the library.
                let library = unsafe { $crate::Library::open(api, paths) }?;
                ::std::result::Result::Ok($Table {
                    $($req: {
                        let name = $crate::c_name!($req);
                        let version = $crate::c_version!($($req_version)?);
                        // SAFETY: the caller vouches for the functions' types.
                        unsafe { library.required(name, version) }?
                    },)*
                    $($opt: {
                        let name = $crate::c_name!($opt);
                        let version = $crate::c_version!($($opt_version)?);
                        // SAFETY: the caller vouches for the functions' types.
                        unsafe { library.optional(name, version) }
                    },)*
                    library,
                })
            }

            /// Fills a table from the default library: the path in the environment variable
            /// [`ENV`](Self::ENV) if it is set, else the first of [`SONAMES`](Self::SONAMES).
            ///
            /// # Errors
            /// As [`load_from`](Self::load_from).
            pub fn load() -> ::std::result::Result<Self, $crate::LoadError> {
                let paths = $crate::library::candidates(Self::ENV, Self::SONAMES);
                // SAFETY: the soname stands for the vendor's ABI, which this table declares; the
                // user that sets the variable vouches for the library as for any LD_LIBRARY_PATH.
                unsafe { Self::load_from(paths) }
            }

            /// [`load`](Self::load), called once for the process.
            ///
            /// # Errors
            /// As [`load_from`](Self::load_from); the result of the first call stays.
            pub fn get() -> ::std::result::Result<&'static Self, &'static $crate::LoadError> {
                static TABLE: ::std::sync::OnceLock<
                    ::std::result::Result<$Table, $crate::LoadError>,
                > = ::std::sync::OnceLock::new();
                TABLE.get_or_init(Self::load).as_ref()
            }

            /// The path or soname under which the library was opened.
            pub fn path(&self) -> &::std::path::Path {
                self.library.path()
            }
        }

        impl ::std::fmt::Debug for $Table {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(::std::stringify!($Table))
                    .field("library", &self.library.path())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// An identifier as a C string literal.
#[doc(hidden)]
#[macro_export]
macro_rules! c_name {
    ($name:ident) => {
        const {
            let bytes = ::std::concat!(::std::stringify!($name), "\0").as_bytes();
            match ::std::ffi::CStr::from_bytes_with_nul(bytes) {
                ::std::result::Result::Ok(name) => name,
                ::std::result::Result::Err(_) => ::std::panic!("an identifier holds no NUL"),
            }
        }
    };
}

/// The version of a symbol, if the declaration has one.
#[doc(hidden)]
#[macro_export]
macro_rules! c_version {
    () => {
        ::std::option::Option::None
    };
    ($version:literal) => {
        const {
            let bytes = ::std::concat!($version, "\0").as_bytes();
            match ::std::ffi::CStr::from_bytes_with_nul(bytes) {
                ::std::result::Result::Ok(version) => ::std::option::Option::Some(version),
                ::std::result::Result::Err(_) => ::std::panic!("a version holds no NUL"),
            }
        }
    };
}
