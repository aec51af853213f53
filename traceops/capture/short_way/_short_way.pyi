from traceops.capture.short_way.ways import LongWay

class ShortWay(LongWay):
    def passed_at(self, ended_ns: int, resumed_ns: int, time_ns: int, /) -> bool: ...
