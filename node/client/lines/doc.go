// Package lines publishes files line by line, so that a run can be repeated without doubling anything.
//
// A line is everything up to a line feed; a carriage return belongs to it. The identity of a line is (run, file, line
// number): a retry meets its first try, and a deliberate second run publishes again. Lines of one key stay in order, as do
// all lines without a key: a key always takes the same lane, a lane has one batch in flight, and a batch that failed is
// repeated before the next one goes.
//
// What is acknowledged is known per file as a watermark: every line up to it is stored. State keeps it in a file, so that
// a run that was interrupted goes on there, even after the dedupe window of the stream is over.
package lines
