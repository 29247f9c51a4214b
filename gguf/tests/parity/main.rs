//! Derived tokenizers give the ids that llama.cpp gives.

mod bpe;
mod compare;
mod corpus;
mod facts;
mod models;
mod pre_tokenizers;
mod sentence_piece;
