"""What scontrol prints of an allocation: `show job -d`, `show node -o`."""

JOB = """\
JobId=4 JobName=interactive
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   NodeList=zz[01-03]
   NumNodes=3 NumCPUs=6 NumTasks=3 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   TRES=cpu=6,mem=12000M,node=3,billing=6
   JOB_GRES=gpu:6
     Nodes=zz[01-02] CPU_IDs=0-1 Mem=4000 GRES=gpu:2(IDX:0-1)
     Nodes=zz03 CPU_IDs=0 Mem=4000 GRES=gpu:a100:1(IDX:1),gpu:t4:3(IDX:2-4)
   MinCPUsNode=2 MinMemoryNode=0 MinTmpDiskNode=0
   TresPerNode=gres:gpu:2
"""


NODES = """\
NodeName=zz01 Arch=x86_64 CoresPerSocket=1 NodeAddr=127.0.0.1 NodeHostName=zz01 Version=22.05.8 RealMemory=4000
NodeName=zz02 Arch=x86_64 CoresPerSocket=1 NodeAddr=127.0.0.2 NodeHostName=zz02 Version=22.05.8 RealMemory=4000
"""
