//! Models on disk: finding them ([`catalogue`]), checking weights that are seen for the first time
//! ([`trial`]), and the files that components see of them ([`files`]).

pub mod catalogue;
pub mod files;
pub mod stamps;
pub mod trial;
