package api

const (
	formatSSE    = "sse"
	formatNDJSON = "ndjson"
	formatJSON   = "json"
)

func (s *Server) publishOne(c *Call)             {}
func (s *Server) publishBatch(c *Call)           {}
func (s *Server) subscribe(c *Call)              {}
func (s *Server) eventAt(c *Call)                {}
func appendJSONString(b []byte, s string) []byte { return b }
