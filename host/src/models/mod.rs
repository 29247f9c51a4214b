//! Models on disk: bringing them there ([`pull`]), converting them, finding them ([`catalogue`]), reading
//! those of Hugging Face's layout ([`exported`]), checking weights that are seen for the first time
//! ([`trial`]), where they compute ([`placement`]), the files that components see of them ([`files`]), and
//! telling people of them ([`listing`]).

pub mod catalogue;
mod convert;
pub mod exported;
pub mod files;
pub mod listing;
pub mod placement;
pub mod pull;
pub mod stamps;
pub mod trial;
