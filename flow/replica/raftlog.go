package replica

import (
	"context"
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3"
)

// raftLogger gives the core's messages to slog, one level down: what it calls information is our debugging.
type raftLogger struct{ log *slog.Logger }

var _ raft.Logger = raftLogger{}

func (l raftLogger) emit(level slog.Level, format string, v ...any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "raft", "text", fmt.Sprintf(format, v...))
	}
}

func (l raftLogger) Debug(v ...any)              {}
func (l raftLogger) Debugf(string, ...any)       {}
func (l raftLogger) Info(v ...any)               { l.emit(slog.LevelDebug, "%s", fmt.Sprint(v...)) }
func (l raftLogger) Infof(f string, v ...any)    { l.emit(slog.LevelDebug, f, v...) }
func (l raftLogger) Warning(v ...any)            { l.emit(slog.LevelDebug, "%s", fmt.Sprint(v...)) }
func (l raftLogger) Warningf(f string, v ...any) { l.emit(slog.LevelDebug, f, v...) }
func (l raftLogger) Error(v ...any)              { l.emit(slog.LevelWarn, "%s", fmt.Sprint(v...)) }
func (l raftLogger) Errorf(f string, v ...any)   { l.emit(slog.LevelWarn, f, v...) }
func (l raftLogger) Fatal(v ...any)              { panic(fmt.Sprint(v...)) }
func (l raftLogger) Fatalf(f string, v ...any)   { panic(fmt.Sprintf(f, v...)) }
func (l raftLogger) Panic(v ...any)              { panic(fmt.Sprint(v...)) }
func (l raftLogger) Panicf(f string, v ...any)   { panic(panicOf(f, v...)) }
