// Package batch is the format of events: records in msgpack, framed into batches whose payload bytes are the same on the wire,
// in the journal, in segments and for readers.
//
// It owns the codec alone: pure, allocation-free per event on the hot path, hostile input rejected by caps before allocation.
package batch
