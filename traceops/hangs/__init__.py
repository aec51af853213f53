"""Why a job hangs: what each rank waits in, who waits for whom, and which rank did it."""
